"""Under which name the operator calls conductors and agents."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tidemill.wire.trust import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE, Credential, NoCredential, SharedSecret


class TokenFile:
    """A token that the kubelet renews; read anew for each call, calls are few. The operator believes nobody: nothing is asked of it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._path.read_text().strip()}"}

    def refusal(self, authorization: str) -> str:
        return "the operator answers no such calls"


def credential_of(environment: Mapping[str, str] = os.environ) -> Credential:
    """Raises `NoCredential`."""
    file, secret = environment.get(TOKEN_FILE_VARIABLE, ""), environment.get(TOKEN_VARIABLE, "")
    if file:
        return TokenFile(Path(file))
    if secret:
        return SharedSecret(secret)
    raise NoCredential(
        f"{TOKEN_FILE_VARIABLE} is not set; the chart mounts a service account token with audience tidemill.dev and names its file there"
    )
