"""A small job, tasks for it, and a scripted model behind a Unix socket, for tests of what runs in sandboxes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from tidemill.api.rljob import RLJob
from tidemill_rollout.tasks.source import Task, load_task


def job(preset: str = "react", **harness: Any) -> RLJob:
    return RLJob.model_validate(
        {
            "apiVersion": "tidemill.dev/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": "small"},
            "spec": {
                "model": {"source": "tiny:qwen3", "maxLength": 2048},
                "cells": {"count": 2, "capacity": 1},
                "schedule": {"groupsPerStep": 1, "rolloutsPerGroup": 2, "steps": 1},
                "sampling": {"maxTokens": 64},
                "tasks": {"source": "path:tasks"},
                "harness": {"preset": preset, **harness},
            },
        }
    )


ANSWER_IS_42 = 'if [ "$(cat answer.txt)" = 42 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n'


def task(folder: Path, tests: str = ANSWER_IS_42, toml: str = "") -> Task:
    """A task whose instruction is to copy question.txt to answer.txt."""
    for part in ("tests", "environment", "solution"):
        (folder / part).mkdir(parents=True)
    (folder / "task.toml").write_text(toml)
    (folder / "instruction.md").write_text("Copy question.txt to answer.txt.\n")
    (folder / "environment" / "question.txt").write_text("42\n")
    (folder / "environment" / "Dockerfile").write_text("FROM ubuntu:24.04\n")
    (folder / "tests" / "test.sh").write_text(tests)
    (folder / "solution" / "solve.sh").write_text("cp question.txt answer.txt\n")
    return load_task(folder)


class ScriptedModel:
    """OpenAI Chat Completions: `reply` makes the assistant's message from the request's body. Every request is kept."""

    def __init__(self, socket: Path, reply: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self.socket = socket
        self.requests: list[tuple[str, str, dict[str, Any]]] = []  # path, authorization, body
        self._reply = reply
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> "ScriptedModel":
        app = web.Application()
        app.router.add_post("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.UnixSite(self._runner, str(self.socket)).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append((request.path, request.headers.get("Authorization", ""), body))
        message = {"role": "assistant", **self._reply(body)}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if message.get("tool_calls") else "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return web.json_response({"id": "c", "object": "chat.completion", "created": 1, "model": "policy", "choices": [choice], "usage": usage})


def bash(command: str) -> dict[str, Any]:
    """A call of the tool `bash`."""
    return {
        "content": "",
        "tool_calls": [{"id": "call-1", "type": "function", "function": {"name": "bash", "arguments": json.dumps({"command": command})}}],
    }
