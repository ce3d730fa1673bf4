"""Token-in/token-out: the route the gateway calls. It takes the place of vLLM's route of the same path, which names versions only at the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from vllm.exceptions import VLLMClientError
from vllm.inputs import TokensPrompt
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.exceptions import EngineDeadError

from tidemill.telemetry.logs import Log
from tidemill.wire.engine import Sampled, Sampling, read_generate, together
from tidemill_rollout.engine.answers import refusal
from tidemill_rollout.engine.control import Control
from tidemill_rollout.engine.versions import Run, versions_of

if TYPE_CHECKING:
    from vllm.logprobs import Logprob
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.output_processor import RequestOutputCollector, RequestState

log = Log(__name__)

PATH = "/inference/v1/generate"

RUN_SECONDS = 0.1
"""Tokens are told in runs of so long: nobody reads them one by one, and what a cell loses when it dies is little."""


class GenerateRoute:
    def __init__(self, engine: AsyncLLM, control: Control, max_length: int) -> None:
        self._engine = engine
        self._control = control
        self._max_length = max_length
        self._aborting: set[asyncio.Task[None]] = set()

    async def answer(self, request: Request) -> Response:
        try:
            call = read_generate.decode(await request.body())
        except (msgspec.MsgspecError, ValueError, TypeError) as cause:
            return refusal(400, f"{PATH}: not a Generate: {cause}")
        if reason := self._control.refuses_calls():
            return refusal(409, reason)
        room = self._max_length - len(call.token_ids)
        if not call.token_ids or room < 1:
            return refusal(400, f"call {call.request_id}: {len(call.token_ids)} tokens; between 1 and {self._max_length - 1} can be continued")
        try:
            prompt = TokensPrompt(prompt_token_ids=list(call.token_ids))
            queue = await self._engine.add_request(call.request_id, prompt, sampling_params(call.sampling, room))
        except (VLLMClientError, ValueError) as cause:
            return refusal(400, f"call {call.request_id}: {cause}")
        return StreamingResponse(self._lines(queue), media_type="application/x-ndjson")

    async def _lines(self, queue: RequestOutputCollector) -> AsyncIterator[bytes]:
        # The state keeps (version, first token) of every run. vLLM drops it from its table at the end, when the last output carries the runs itself.
        state = self._engine.output_processor.request_states.get(queue.request_id)
        seen = 0
        finished = False
        runs: list[Sampled] = []
        told = 0.0
        try:
            while not finished:
                output = await queue.get()
                assert isinstance(output, RequestOutput)  # the only kind a sampling request yields
                runs.append(as_sampled(output, state, seen))
                seen += len(runs[-1].token_ids)
                finished = output.finished
                if finished or time.monotonic() - told >= RUN_SECONDS:
                    told = time.monotonic()
                    yield msgspec.json.encode(together(runs)) + b"\n"
                    runs = []
        except EngineDeadError:  # or it was told to stop: the stream ends without a finish reason, and the gateway goes on elsewhere
            finished = True
        finally:
            queue.close()
            if not finished:  # the gateway has hung up. A task of its own, because this one is being cancelled.
                abort = asyncio.create_task(self._engine.abort(queue.request_id, internal=True))
                self._aborting.add(abort)
                abort.add_done_callback(self._aborting.discard)


def sampling_params(sampling: Sampling, room: int) -> SamplingParams:
    return SamplingParams(
        max_tokens=min(sampling.max_tokens, room),
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        stop=list(sampling.stop),
        stop_token_ids=list(sampling.stop_token_ids),
        seed=sampling.seed,
        logprobs=0,  # of the sampled token only
        detokenize=bool(sampling.stop),  # text is needed only to find stop strings
        output_kind=RequestOutputKind.DELTA,
    )


def as_sampled(output: RequestOutput, state: RequestState | None, first: int) -> Sampled:
    """What vLLM has sampled since the last output; `first` tokens were sampled before."""
    [completion] = output.outputs
    token_ids = tuple(completion.token_ids)
    entries = cast("list[dict[int, Logprob]]", completion.logprobs or [])  # one for each token, because `sampling_params` asks for them
    logprobs = tuple(entry[token].logprob for token, entry in zip(token_ids, entries, strict=True))
    versions = versions_of(runs_of(output, state), first, len(token_ids))
    ending = completion.finish_reason if completion.finish_reason in ("stop", "length", "abort") else ""  # "error": the stream counts as cut
    return Sampled(token_ids, logprobs, versions, ending)


def runs_of(output: RequestOutput, state: RequestState | None) -> Sequence[Run]:
    if output.outputs[0].weight_versions is not None:
        return [Run(int(span.version), span.start) for span in output.outputs[0].weight_versions]
    return [Run(int(version), start) for version, start in state.weight_version_starts] if state else []
