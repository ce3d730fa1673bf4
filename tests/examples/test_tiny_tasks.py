"""The tiny job's tasks: each is complete in itself, as Harbor's layout asks, so their agent lies in every one of them."""

from pathlib import Path

TASKS = Path(__file__).parents[2] / "examples" / "tiny" / "tasks"


def test_every_task_has_the_same_agent_so_that_a_change_to_one_is_made_to_all() -> None:
    agents = sorted(TASKS.glob("*/environment/writer.py"))
    assert len(agents) == len(list(TASKS.iterdir())) == 4
    assert len({agent.read_bytes() for agent in agents}) == 1
