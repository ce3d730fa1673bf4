from random import Random

from bench.trajectory import BYTES_PER_TOKEN, execution, measured, ours


def test_a_long_execution_is_kept_drawn_from_and_packed_in_a_few_times_its_tokens_own_size() -> None:
    raw = execution(300_000, 150, 20, Random(0))
    tokens = sum(len(one[4]) + len(one[5]) for one in raw)
    figures = measured(ours, raw, tokens * BYTES_PER_TOKEN)
    assert tokens > 290_000
    assert figures["branches"] > 8
    assert figures["packed tokens"] < figures["path tokens"], "paths share"
    assert figures["times own size"] < 3
    assert figures["seconds"] < 5  # 0.02 on an idle machine
