"""Who a process is and whom it believes: one secret that all share on one machine, tokens that the cluster signs on a cluster.

On a cluster nobody is asked: a token is checked against the cluster's public keys, which the operator hands out with the names of those
that take part in the job. So a job goes on while the API server is away.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import jwt
import msgspec

from tidemill.telemetry.logs import Log

TOKEN_VARIABLE = "TIDEMILL_TOKEN"
"""Environment variable with the bearer token that all processes of a local job share."""

TOKEN_FILE_VARIABLE = "TIDEMILL_TOKEN_FILE"
"""Environment variable with the file of this process's own token, which the kubelet renews."""

TRUST_VARIABLE = "TIDEMILL_TRUST"
"""Environment variable with the file that says whose tokens are believed: a `Trust`."""

ALGORITHMS = ("RS256", "ES256")
LEEWAY_SECONDS = 60
"""By how much the clocks of two nodes may differ."""

_log = Log(__name__)


class NoCredential(Exception):
    """The environment does not say who this process is. The message names the variable and the remedy."""


class Credential(Protocol):
    """What a process sends with its calls, and how it judges what others send."""

    def headers(self) -> dict[str, str]:
        """Of a call, as of now."""
        ...

    def refusal(self, authorization: str) -> str:
        """Why a call with this Authorization header is not answered; "" when it is. Says nothing that a stranger could use."""
        ...


class SharedSecret:
    """One token, known to all processes of a job and to nobody else."""

    def __init__(self, token: str) -> None:
        self._header = f"Bearer {token}"

    def headers(self) -> dict[str, str]:
        return {"Authorization": self._header}

    def refusal(self, authorization: str) -> str:
        sent = authorization.encode(errors="surrogateescape")  # a header may hold any bytes
        return "" if hmac.compare_digest(sent, self._header.encode()) else "missing or wrong bearer token"


class Trust(msgspec.Struct, frozen=True):
    """The file behind `TIDEMILL_TRUST`, written by the operator."""

    issuer: str
    audience: str
    subjects: tuple[str, ...]  # e.g. system:serviceaccount:NAMESPACE:JOB-cell
    keys: dict[str, Any]  # a JSON Web Key Set, as the API server publishes it


class ClusterIdentity:
    """A token of this process's own, and the public keys of the cluster. Both files change while it runs, and are read again when they do.

    Raises:
        NoCredential: one of them cannot be used.
    """

    def __init__(self, token_file: Path, trust_file: Path) -> None:
        self._token: Watched[str] = Watched(token_file, TOKEN_FILE_VARIABLE, _token_of)
        self._trust: Watched[_Verifier] = Watched(trust_file, TRUST_VARIABLE, _Verifier)

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token.value()}"}

    def refusal(self, authorization: str) -> str:
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token or not token.isascii():
            return "missing bearer token"
        verifier = self._trust.value()
        if not verifier.knows_key_of(token):
            verifier = self._trust.value(even_if_unchanged=True)  # the cluster may have begun to sign with a new key
        return verifier.refusal(token)


def from_environment(environment: Mapping[str, str] = os.environ) -> Credential:
    """The credential of this process. Raises `NoCredential`."""
    token, token_file, trust_file = (environment.get(name, "") for name in (TOKEN_VARIABLE, TOKEN_FILE_VARIABLE, TRUST_VARIABLE))
    if token and not token_file:
        return SharedSecret(token)
    if token:
        raise NoCredential(f"{TOKEN_VARIABLE} and {TOKEN_FILE_VARIABLE} are both set; unset {TOKEN_VARIABLE} on a cluster, the other on one machine")
    if not token_file:
        raise NoCredential(
            f"{TOKEN_VARIABLE} is not set; set {TOKEN_VARIABLE} to the job's bearer token, or on a cluster {TOKEN_FILE_VARIABLE} and {TRUST_VARIABLE}"
        )
    if not trust_file:
        raise NoCredential(f"{TRUST_VARIABLE} is not set; with {TOKEN_FILE_VARIABLE} it names the file that says whose tokens are believed")
    return ClusterIdentity(Path(token_file), Path(trust_file))


def credential(given: Credential | str) -> Credential:
    """A plain string is a shared secret."""
    return SharedSecret(given) if isinstance(given, str) else given


class Watched[T]:
    """What is in a file, read again when the file changes. A change that makes no sense is reported and waited out."""

    def __init__(self, path: Path, variable: str, parse: Callable[[bytes], T]) -> None:
        self._path = path
        self._parse = parse
        self._seen: tuple[int, int, int] | None = None
        self._broken = False
        try:
            self._seen = self._stamp()
            self._value = parse(path.read_bytes())
        except (OSError, ValueError, jwt.PyJWTError) as cause:
            raise NoCredential(f"{variable}: {path} cannot be used ({cause}); it is mounted into the pod by the operator") from cause

    def value(self, *, even_if_unchanged: bool = False) -> T:
        try:
            stamp = self._stamp()
            if stamp != self._seen or even_if_unchanged:
                self._value = self._parse(self._path.read_bytes())
                self._seen, self._broken = stamp, False
        except (OSError, ValueError, jwt.PyJWTError) as cause:
            if not self._broken:
                _log.warning("file cannot be read again, what it said before holds", path=str(self._path), reason=str(cause))
            self._broken = True
        return self._value

    def _stamp(self) -> tuple[int, int, int]:
        """The kubelet changes a mounted file by turning a link to a new folder, so the file is another one then."""
        status = self._path.stat()
        return status.st_mtime_ns, status.st_ino, status.st_size


class _Verifier:
    def __init__(self, raw: bytes) -> None:
        self._trust = msgspec.json.decode(raw, type=Trust)
        self._keys = {key.key_id: key for key in jwt.PyJWKSet.from_dict(self._trust.keys).keys if key.key_id}

    def knows_key_of(self, token: str) -> bool:
        return _key_id(token) in self._keys

    def refusal(self, token: str) -> str:
        key = self._keys.get(_key_id(token) or "")
        if key is None:
            return "the bearer token is signed with a key that this cluster does not have"
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=ALGORITHMS,
                audience=self._trust.audience,
                issuer=self._trust.issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except jwt.ExpiredSignatureError:
            return "the bearer token has expired"
        except jwt.ImmatureSignatureError:
            return "the bearer token is not valid yet; compare the nodes' clocks"
        except jwt.InvalidAudienceError:
            return "the bearer token is meant for another audience"
        except jwt.InvalidIssuerError:
            return "the bearer token was issued by another cluster"
        except jwt.PyJWTError:
            return "the bearer token is not valid"
        return "" if claims["sub"] in self._trust.subjects else "the bearer token belongs to nobody who takes part in this job"


def _key_id(token: str) -> str | None:
    try:
        found = jwt.get_unverified_header(token).get("kid")
    except (jwt.PyJWTError, RecursionError):  # nested deeper than any header is
        return None
    return found if isinstance(found, str) else None


def _token_of(raw: bytes) -> str:
    token = raw.decode().strip()
    if not token:
        raise ValueError("it is empty")
    return token
