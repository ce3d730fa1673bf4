"""What an agent exports. vLLM's own metrics are not copied: they are at `/engine/metrics`, and whoever scrapes gives them the cell's labels."""

from __future__ import annotations

from collections.abc import Callable

from tidemill.telemetry.catalogue import cell as catalogue
from tidemill.telemetry.registry import Numbers, Registry
from tidemill_cell.agent import Agent
from tidemill_cell.children import Child
from tidemill_cell.proxy import Proxy
from tidemill_cell.usage import usage


def registry_of(agent: Agent, proxy: Proxy) -> Registry:
    me, ledger = agent.identity, agent.ledger
    registry = Registry("cell", job=me.job, cell=me.cell, rank="0")
    registry.read(catalogue.ROLE, lambda: {ledger.roles.doing: 1})
    registry.read(catalogue.EPOCH, lambda: agent.state().epoch)
    registry.read(catalogue.VERSION, lambda: agent.state().policy_version)
    registry.read(catalogue.CAPACITY, lambda: me.capacity)
    registry.read(catalogue.ROLE_SECONDS, ledger.roles.seconds)
    registry.read(catalogue.IDLE_SECONDS, ledger.idle.seconds)
    registry.read(catalogue.FLIPS, lambda: ledger.flips)
    registry.read(catalogue.FLIP_SECONDS, lambda: ledger.flip_seconds)
    registry.read(catalogue.FLIP_PHASE_SECONDS, lambda: ledger.phase_seconds)
    registry.read(catalogue.LAST_FLIP_SECONDS, lambda: ledger.last_flip_seconds)
    registry.read(catalogue.PHASE_FAILURES, lambda: ledger.phase_failures)
    registry.read(catalogue.CALLS, lambda: proxy.calls)
    registry.read(catalogue.LIVE_CALLS, lambda: proxy.live_calls)
    registry.read(catalogue.MOVED_CALLS, lambda: ledger.moved_calls)
    registry.read(catalogue.WEIGHT_LOADS, lambda: ledger.loads)
    registry.read(catalogue.WEIGHT_LOAD_SECONDS, lambda: ledger.load_seconds)
    registry.read(catalogue.WEIGHT_LOAD_BYTES, lambda: ledger.load_bytes)
    registry.read(catalogue.WEIGHT_LOAD_FAILURES, lambda: ledger.load_failures)
    read_children(registry, agent.children)
    return registry


def registry_of_follower(job: str, cell: str, rank: int, children: tuple[Child, ...]) -> Registry:
    """Of a node that is not the first of its cell: what it takes, and nothing of the cell, which rank 0 tells of."""
    registry = Registry("cell", job=job, cell=cell, rank=str(rank))
    read_children(registry, children)
    return registry


def read_children(registry: Registry, children: tuple[Child, ...]) -> None:
    taken = _Taken(children)
    registry.before_each_page(taken.look)
    registry.read(catalogue.CHILD_STARTS, _each(children, lambda child: child.starts))
    registry.read(catalogue.CHILD_CPU_SECONDS, lambda: taken.cpu_seconds)
    registry.read(catalogue.CHILD_MEMORY_BYTES, lambda: taken.memory_bytes)


def _each(children: tuple[Child, ...], figure: Callable[[Child], float]) -> Callable[[], Numbers]:
    return lambda: {child.program.name: figure(child) for child in children}


class _Taken:
    """What the children that live take. A process that has just ended is nobody's for a moment: then the seconds of its life so far stay."""

    def __init__(self, children: tuple[Child, ...]) -> None:
        self._children = children
        self._lives: dict[str, tuple[str, float]] = {}
        self.cpu_seconds: dict[str, float] = {}
        self.memory_bytes: dict[str, float] = {}

    def look(self) -> None:
        self.cpu_seconds, self.memory_bytes = {}, {}
        for child in self._children:
            now = usage(child.pid) if child.pid else None
            if now is None:
                continue
            name = child.program.name
            life, before = self._lives.get(name, ("", 0.0))
            self.cpu_seconds[name] = max(now.cpu_seconds, before) if life == child.incarnation else now.cpu_seconds
            self.memory_bytes[name] = now.memory_bytes
            self._lives[name] = child.incarnation, self.cpu_seconds[name]
