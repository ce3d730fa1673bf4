"""The HTTP surface against its own description: whatever is sent, the gateway answers, soon, and never with a failure of its own."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error

from tests.rollout.gateway.world import TOKEN, World, world
from tidemill.wire.gateway import Drain, OpenExecution, Route

TEXT = {"type": "string"}
PART = {"type": "object", "properties": {"type": {"enum": ["text", "image", "tool_use", "tool_result", "thinking", "input_text"]}, "text": TEXT}}
MESSAGE = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"enum": ["system", "user", "assistant", "tool", "developer"]},
        "content": {"anyOf": [TEXT, {"type": "array", "items": PART}]},
        "tool_call_id": TEXT,
        "call_id": TEXT,
        "type": {"enum": ["message", "function_call", "function_call_output", "reasoning"]},
    },
}
TOOL = {"type": "object", "properties": {"type": TEXT, "name": TEXT, "function": {"type": "object"}, "input_schema": {"type": "object"}}}
ASKED = {
    "stream": {"type": "boolean"},
    "max_tokens": {"type": "integer"},
    "temperature": {"type": "number"},
    "stop": TEXT,
    "n": {"type": "integer"},
    "tools": {"type": "array", "items": TOOL},
}


def conversation(field: str) -> dict[str, Any]:
    return {"type": "object", "required": [field], "properties": {field: {"type": "array", "items": MESSAGE}, **ASKED}}


HARNESS = {
    "/x/e1/v1/chat/completions": conversation("messages"),
    "/x/e1/v1/messages": conversation("messages"),
    "/x/e1/v1/messages/count_tokens": conversation("messages"),
    "/x/e1/v1/responses": conversation("input"),
}
OURS = {"/v1/executions/{name}": OpenExecution, "/v1/routes/{name}": Route, "/v1/cells/{name}/drain": Drain}


def description() -> dict[str, Any]:
    """OpenAPI: of what harnesses send the outline, of our own messages the structs that the routes read."""
    schemas, components = msgspec.json.schema_components(OURS.values(), ref_template="#/components/schemas/{name}")
    name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    paths: dict[str, Any] = {}
    for path, schema in {**HARNESS, **dict(zip(OURS, schemas, strict=True))}.items():
        method = "put" if path.startswith(("/v1/executions", "/v1/routes")) else "post"
        body = {"required": True, "content": {"application/json": {"schema": schema}}}
        parameters = [name] if "{name}" in path else []
        paths[path] = {method: {"parameters": parameters, "requestBody": body, "responses": {"default": {"description": ""}}}}
    for path in ("/x/e1/v1/models", "/v1/state", "/healthz", "/metrics"):
        paths[path] = {"get": {"responses": {"default": {"description": ""}}}}
    attempt = {"name": "attempt", "in": "query", "schema": {"type": "string"}}
    paths["/v1/executions/{name}/close"] = {"post": {"parameters": [name, attempt], "responses": {"default": {"description": ""}}}}
    return {"openapi": "3.1.0", "info": {"title": "gateway", "version": "1"}, "paths": paths, "components": {"schemas": components}}


SCHEMA = schemathesis.openapi.from_dict(description())


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A gateway in a thread of its own: schemathesis asks from this one."""
    folder: Path = tmp_path_factory.mktemp("surface")
    ready, done = threading.Event(), asyncio.Event()
    made: list[tuple[World, asyncio.AbstractEventLoop]] = []

    async def serve() -> None:
        async with world(folder, call_seconds=0.2) as w:
            made.append((w, asyncio.get_running_loop()))
            ready.set()
            await done.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(30)
    [(w, loop)] = made
    yield w
    assert len(asyncio.all_tasks(loop)) < 60, "tasks stay behind"
    loop.call_soon_threadsafe(done.set)
    thread.join(30)


@SCHEMA.parametrize()
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_request_makes_it_fail(case: schemathesis.Case, served: World) -> None:
    token = "key-of-e1" if case.path.startswith("/x/") else TOKEN
    answer = case.call(base_url=served.url, headers={"Authorization": f"Bearer {token}"}, timeout=20)
    if "Retry-After" not in answer.headers and answer.status_code != 503:
        case.validate_response(answer, checks=[not_a_server_error])
