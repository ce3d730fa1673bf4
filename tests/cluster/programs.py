"""The programs of a Kubernetes cluster: which, of which version, and where they are. `python -m tests.cluster.programs [api|node]` provides them.

Looked for in KUBEBUILDER_ASSETS (a folder, as for envtest; whatever lies there is taken), then in the cache, and built there when missing or of
another version.
"""

from __future__ import annotations

import mmap
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.building import BuildFailed, Module, build

_KUBERNETES = "1.37.2"
_VERSION = "k8s.io/component-base/version"
_KUBERNETES_PROGRAMS = ("kube-apiserver", "kubectl", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
_CONTAINERD = "2.4.2"
_CONTAINERD_PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr")

# Every version is named here and nowhere else.
MODULES = (
    Module("go.etcd.io/etcd/server/v3", "3.6.16", {"etcd": "go.etcd.io/etcd/server/v3"}),
    Module(
        "k8s.io/kubernetes",
        _KUBERNETES,
        {program: f"k8s.io/kubernetes/cmd/{program}" for program in _KUBERNETES_PROGRAMS},
        # Without these a client sees v0.0.0.
        link=tuple(f"-X={_VERSION}.{key}={value}" for key, value in (("gitVersion", f"v{_KUBERNETES}"), ("gitMajor", "1"), ("gitMinor", "37"))),
        staged=f"v0.{_KUBERNETES.removeprefix('1.')}",
    ),
    Module("helm.sh/helm/v4", "4.3.1", {"helm": "helm.sh/helm/v4/cmd/helm"}),
    Module(
        "github.com/containerd/containerd/v2",
        _CONTAINERD,
        {program: f"github.com/containerd/containerd/v2/cmd/{program}" for program in _CONTAINERD_PROGRAMS},
        link=(f"-X=github.com/containerd/containerd/v2/version.Version=v{_CONTAINERD}",),
        tags=("no_btrfs", "no_devmapper", "no_zfs"),
    ),
    # Enforces NetworkPolicy. It has reported security flaws: for tests only.
    Module("github.com/cloudnativelabs/kube-router/v2", "2.1.0", {"kube-router": "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"}),
    # Debian's cannot look for pods.
    Module(
        "github.com/prometheus/prometheus",
        "0.316.0",
        {"prometheus": "github.com/prometheus/prometheus/cmd/prometheus"},
        tags=("remove_all_sd", "enable_kubernetes_sd"),
    ),
)

SERVER = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")
API = (*SERVER, "helm")
NODE = tuple(program for module in MODULES for program in module.programs)


@dataclass(frozen=True, slots=True)
class Programs:
    """Where each program is."""

    paths: dict[str, Path]

    def __getitem__(self, name: str) -> str:
        return str(self.paths[name])

    def search_path(self) -> str:
        """A PATH on which they come first: containerd looks for its shim, and people for kubectl."""
        return os.pathsep.join([*sorted({str(path.parent) for path in self.paths.values()}), os.environ["PATH"]])


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tidemill" / "kubernetes" / _KUBERNETES


def programs(names: tuple[str, ...]) -> Programs:
    """Find these programs; build those that are missing, which takes minutes.

    Raises:
        BuildFailed: one is missing and cannot be built here.
    """
    given = Path(os.environ["KUBEBUILDER_ASSETS"]) if os.environ.get("KUBEBUILDER_ASSETS") else None
    found: dict[str, Path] = {}
    for module in MODULES:
        wanted = [name for name in module.programs if name in names]
        found |= {name: given / name for name in wanted if given and (given / name).exists()}
        rest = [name for name in wanted if name not in found]
        missing = [name for name in rest if not is_of(cache() / name, module)]
        if missing:
            build(module, missing, cache(), is_of)
        found |= {name: cache() / name for name in rest}
    return Programs(found)


def is_of(program: Path, module: Module) -> bool:
    """Whether the program is there and was built from this version of the module: Go writes its modules into each program."""
    if not program.exists() or not program.stat().st_size:
        return False
    with program.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(f"\t{module.path}\tv{module.version}\t".encode()) >= 0


def main() -> None:
    names = API if sys.argv[1:] == ["api"] else NODE
    try:
        found = programs(names)
    except BuildFailed as failure:
        sys.exit(str(failure))
    for folder in sorted({path.parent for path in found.paths.values()}):
        print(f"programs of the test cluster: {folder}")


if __name__ == "__main__":
    main()
