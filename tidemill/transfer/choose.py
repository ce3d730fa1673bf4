"""Which transport a process of this machine uses."""

from __future__ import annotations

import os

from tidemill.telemetry.logs import Log
from tidemill.transfer.nixl import NixlTransport
from tidemill.transfer.plain import PlainTransport
from tidemill.transfer.transport import Transport

TRANSPORT_VARIABLE = "TIDEMILL_TRANSPORT"
"""Environment variable: "nixl" or "plain". Unset: NIXL where it loads."""


def transport(host: str = "127.0.0.1", advertise: str = "") -> Transport:
    """The transport of this process. It listens on `host`, others reach it at `advertise` (NIXL finds both by itself).

    Raises:
        ImportError: NIXL was asked for by name and does not load.
    """
    wanted = os.environ.get(TRANSPORT_VARIABLE, "")
    if wanted not in ("", "nixl", "plain"):
        raise ValueError(f"{TRANSPORT_VARIABLE} is {wanted!r}; set it to nixl or plain, or leave it unset")
    if wanted == "plain":
        return PlainTransport(host, advertise)
    try:
        return NixlTransport()
    except ImportError as cause:
        if wanted == "nixl":
            raise
        Log(__name__).warning("NIXL does not load, weights and gradients go over plain TCP", cause=str(cause))
        return PlainTransport(host, advertise)
