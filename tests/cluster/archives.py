"""Images for the tests' own pods, written as OCI archives: a pause program, and an empty one into which pods mount the machine's Python."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAUSE = "tidemill.test/pause:1"
HOST = "tidemill.test/host:1"
_PASSWD = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/tmp:/bin/sh\n"


@dataclass(frozen=True, slots=True)
class File:
    """A folder when it has no content."""

    path: str
    content: bytes | None = None
    mode: int = 0o755


def write_pause(archive: Path) -> None:
    _write(archive, PAUSE, [File("pause", _sleeping_program())], ["/pause"])


def write_host(archive: Path) -> None:
    folders = [File(path) for path in ("usr", "lib", "lib64", "bin", "etc", "proc", "sys", "dev", "root")]
    files = [File("tmp", mode=0o1777), File("etc/passwd", _PASSWD.encode(), 0o644), File("etc/group", b"root:x:0:\nnogroup:x:65534:\n", 0o644)]
    _write(archive, HOST, folders + files, ["/bin/sh"])


def host_template(*containers: str, init_containers: tuple[str, ...] = ()) -> dict[str, Any]:
    """A pod template fragment: these containers of a pod with the image HOST run this machine's programs and this repository's environment.

    Read-only, and at the paths they have here. `python` is the environment's.
    """
    prefixes = {Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), ROOT}
    system = [Path("/usr"), Path("/lib"), Path("/lib64"), Path("/bin")]
    places = [*system, *sorted(p for p in prefixes if not any(p.is_relative_to(other) for other in {*system, *prefixes} - {p}))]
    volumes = [{"name": f"host{i}", "hostPath": {"path": str(place), "type": "Directory"}} for i, place in enumerate(places)]
    mounts = [{"name": f"host{i}", "mountPath": str(place), "readOnly": True} for i, place in enumerate(places)]
    spec: dict[str, Any] = {"volumes": volumes, "containers": [{"name": name, "volumeMounts": mounts} for name in containers]}
    if init_containers:
        spec["initContainers"] = [{"name": name, "volumeMounts": mounts} for name in init_containers]
    return {"spec": spec}


def _sleeping_program() -> bytes:
    """An x86-64 ELF file whose only instructions are the system call pause(), for ever: no compiler is needed for that."""
    code = b"\xb8\x22\x00\x00\x00" + b"\x0f\x05" + b"\xeb\xf7"  # mov eax, 34; syscall; jmp to the start
    base, headers = 0x400000, 64 + 56
    size = headers + len(code)
    identity = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    file_header = struct.pack("<16sHHIQQQIHHHHHH", identity, 2, 62, 1, base + headers, 64, 0, 0, 64, 56, 1, 64, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, size, size, 0x1000)
    return file_header + segment + code


def _write(archive: Path, name: str, files: list[File], command: list[str]) -> None:
    layer = _tar(files)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": command, "Env": [f"PATH={sys.prefix}/bin:/usr/bin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
    }
    blobs = [layer, json.dumps(config).encode()]
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": _described("application/vnd.oci.image.config.v1+json", blobs[1]),
        "layers": [_described("application/vnd.oci.image.layer.v1.tar", layer)],
    }
    blobs.append(json.dumps(manifest).encode())
    entry = _described(manifest["mediaType"], blobs[2]) | {"annotations": {"io.containerd.image.name": name}}
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [entry]}
    contents = [File("oci-layout", b'{"imageLayoutVersion": "1.0.0"}'), File("index.json", json.dumps(index).encode())]
    contents += [File(f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}", blob) for blob in blobs]
    archive.write_bytes(_tar(contents))


def _tar(files: list[File]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for file in files:
            entry = tarfile.TarInfo(file.path)
            entry.mode = file.mode
            entry.type = tarfile.DIRTYPE if file.content is None else tarfile.REGTYPE
            entry.size = len(file.content or b"")
            tar.addfile(entry, io.BytesIO(file.content or b""))
    return buffer.getvalue()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _described(media_type: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(content), "size": len(content)}
