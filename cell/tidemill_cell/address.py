"""Where a server listens, how this process reaches it, and how others do."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

LOOPBACK = "127.0.0.1"
EVERYWHERE = ("0.0.0.0", "::", "")


@dataclass(frozen=True, slots=True)
class Address:
    host: str  # to listen on
    port: int
    advertised: str = ""  # URL under which others reach it; empty: as this process does

    @property
    def local_url(self) -> str:
        """For who shares its network: a server that listens everywhere listens on the loopback interface too."""
        return f"http://{LOOPBACK if self.host in EVERYWHERE else self.host}:{self.port}"

    @property
    def url(self) -> str:
        return self.advertised or self.local_url

    @property
    def reached_as(self) -> str:
        """The host part of `url`."""
        return urlsplit(self.url).hostname or LOOPBACK
