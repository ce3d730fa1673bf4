"""Bulk memory between processes, without process groups: pull what another process exports. NIXL where it loads, plain TCP where not."""

from tidemill.transfer.choose import transport
from tidemill.transfer.transport import Region, TransferFailed, Transport

__all__ = ["Region", "TransferFailed", "Transport", "transport"]
