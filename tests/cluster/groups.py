"""Control groups of the nodes: made before their programs start, in version 1 and in version 2."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
DAEMONS = "daemons"
RUN_WEIGHT = 16
"""Of all nodes together, in processes: in one group among the machine's processes they would get the share of one of them."""


def make_group(name: str) -> None:
    """A group for one node (`RUN/n0`), with what the kubelet wants of it, and below it one for the node's own programs."""
    if _version_2():
        _make_in_version_2(name)
        return
    for hierarchy in _hierarchies():
        (hierarchy / name / DAEMONS).mkdir(parents=True, exist_ok=True)
    for shares in ROOT.glob(f"cpu/{name.split('/')[0]}/cpu.shares"):
        shares.write_text(str(RUN_WEIGHT * 1024))
    for file in ("cpuset.cpus", "cpuset.mems"):  # empty in a new group, which then can hold no process
        for above, group in _steps(ROOT / "cpuset", f"{name}/{DAEMONS}"):
            if (above / file).exists():
                (group / file).write_text((above / file).read_text())


def join(name: str, process: int) -> None:
    """Count a program, and whatever it starts, as one of the node's own: where the node's power is cut, it ends."""
    base = ROOT if _version_2() else next(h for h in (ROOT / "pids", *_hierarchies()) if h.exists())
    (base / name / DAEMONS / "cgroup.procs").write_text(str(process))


def _version_2() -> bool:
    return (ROOT / "cgroup.controllers").exists()


def _hierarchies() -> list[Path]:
    return [folder for folder in sorted(ROOT.iterdir()) if not folder.is_symlink() and (folder / "cgroup.procs").exists()]


def _make_in_version_2(name: str) -> None:
    for above, group in _steps(ROOT, name):
        available = (above / "cgroup.controllers").read_text().split()
        try:
            (above / "cgroup.subtree_control").write_text(" ".join(f"+{controller}" for controller in available))
        except OSError as cause:
            raise RuntimeError(
                f"{above} cannot hand its controllers down ({cause.strerror}). In a container, move its processes into a group of their own first: "
                f"mkdir {ROOT}/init && xargs -rn1 < {ROOT}/cgroup.procs > {ROOT}/init/cgroup.procs"
            ) from cause
        group.mkdir(exist_ok=True)
    (ROOT / name.split("/")[0] / "cpu.weight").write_text(str(RUN_WEIGHT * 100))
    (ROOT / name / DAEMONS).mkdir(exist_ok=True)


def _steps(base: Path, name: str) -> list[tuple[Path, Path]]:
    """Each group on the way to `name`, after the one above it."""
    groups = [base]
    for part in name.split("/"):
        groups.append(groups[-1] / part)
    return list(pairwise(groups))
