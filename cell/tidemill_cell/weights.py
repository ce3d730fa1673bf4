"""Keeping the engine at the published version: pull, load, verify."""

from __future__ import annotations

from tidemill.telemetry.logs import Log
from tidemill.wire.engine_control import EngineControl
from tidemill.wire.http import Refused, WireError
from tidemill.wire.trainer import TrainerClient
from tidemill_cell.roles import Weights

_log = Log(__name__)

PULL_SECONDS = 120.0


class NotLoaded(Exception):
    """The published weights cannot be had now. The engine still has what it had."""


class WrongWeights(Exception):
    """What the engine has loaded is not what was published. It must not serve."""


async def bring_to(published: Weights, core: TrainerClient, engine: EngineControl, recompute_kv: bool) -> int:
    """Load `published` into the engine, and return only if that is what it has loaded; how many bytes that were.

    Raises:
        NotLoaded: the core does not offer it, or the bytes were not what was announced.
        WrongWeights: something else was loaded.
        WireError: the engine did not answer as it should; what it has loaded is unknown.
    """
    try:
        snapshot = await core.weights_of_version(published.version)
    except WireError as cause:
        raise NotLoaded(f"the core offers no weights of version {published.version}: {cause}") from cause
    if (snapshot.version, snapshot.digest) != (published.version, published.digest):
        raise NotLoaded(
            f"the core offers version {snapshot.version} with digest {snapshot.digest}, "
            f"but version {published.version} was published with digest {published.digest}; waiting for that"
        )
    try:
        loaded = await engine.update_weights(snapshot, recompute_kv, PULL_SECONDS)
    except Refused as refusal:
        raise NotLoaded(f"the engine refused version {published.version}: {refusal}") from refusal
    if (loaded.state.version, loaded.state.digest) != (published.version, published.digest):
        raise WrongWeights(
            f"the engine has loaded version {loaded.state.version} with digest {loaded.state.digest}, "
            f"but version {published.version} was published with digest {published.digest}"
        )
    _log.info("weights verified", version=published.version, digest=published.digest, seconds=loaded.seconds)
    return sum(shard.nbytes for shard in snapshot.shards)
