"""Prometheus and promtool: those of this machine, or Debian's, downloaded and unpacked into a cache, which needs no root."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

PACKAGE = "prometheus"


@cache
def program(name: str) -> str:
    """Path of `prometheus` or `promtool`.

    Raises:
        RuntimeError: it is not here and cannot be fetched. The message says what to do.
    """
    unpacked = _cache() / "usr" / "bin" / name
    found = shutil.which(name) or (str(unpacked) if unpacked.exists() else None)
    if found is None:
        _fetch()
        found = str(unpacked)
    return found


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidemill" / "prometheus"


def _fetch() -> None:
    _cache().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_cache()) as folder:
        try:
            subprocess.run(["apt-get", "-qq", "download", PACKAGE], cwd=folder, check=True, capture_output=True, text=True)
            (package,) = Path(folder).glob("*.deb")
            subprocess.run(["dpkg", "-x", str(package), str(_cache())], check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError, ValueError) as cause:
            said = getattr(cause, "stderr", "") or str(cause)
            raise RuntimeError(f"prometheus and promtool are needed and cannot be fetched with apt ({said.strip()}); install them") from cause
