"""Places on nodes: of two jobs of which only one fits, one runs and then the other. Neither knows of the other, and no queue helps them."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.api_server import ApiServer
from tests.cluster.operator_process import Cluster, cluster, is_, job
from tests.cluster.operator_stand_ins import processes

CELLS = [f"cell-{n}" for n in range(4)]


async def test_two_half_placed_jobs_do_not_wait_for_each_other(api_server: ApiServer, namespace: str, tmp_path: Path) -> None:
    async with cluster(api_server, namespace, tmp_path) as here, processes(CELLS) as one, processes(CELLS) as other:
        here.places = 0
        await here.start(placementSeconds=4)
        for name, there in (("one", one), ("other", other)):
            await here.submit(job(name, cells=4), there.conductor.url)
        await here.until(lambda: here.pods("cell"), lambda pods: len(pods) == 8)
        here.places = 5  # only now, else the first job might get four before the second has any pod
        await here.until(lambda: _placed(here), lambda placed: sorted(placed.values()) == [2, 3])
        await here.until(lambda: _placed(here), lambda placed: 4 in placed.values(), seconds=60)
        placed = await _placed(here)
        first, second = sorted(placed, key=lambda name: -placed[name])
        await here.until(lambda: here.condition("Placed", first), lambda condition: condition.get("status") == "True")
        assert (await here.condition("Placed", second))["status"] == "False"
        assert "PlacesGivenBack" in {event["reason"] for event in await here.all("Event")}
        await {"one": one, "other": other}[first].conductor.finish_job()
        await here.until(lambda: here.phase(first), is_("Succeeded"))
        await here.until(lambda: _placed(here), lambda placed: placed == {first: 0, second: 4}, seconds=60)


async def _placed(here: Cluster) -> dict[str, int]:
    """How many cells of each job have a node."""
    having = [pod["metadata"]["labels"]["tidemill.dev/job"] for pod in (await here.pods("cell")).values() if "nodeName" in pod["spec"]]
    return {name: having.count(name) for name in ("one", "other")}
