from tidemill_rollout.engine.versions import Run, versions_of

RUNS = [Run(4, 0), Run(5, 3), Run(7, 4)]


def test_every_token_has_the_version_of_its_run() -> None:
    assert versions_of(RUNS, 0, 6) == (4, 4, 4, 5, 7, 7)


def test_a_later_piece_of_an_answer_begins_where_the_earlier_ended() -> None:
    assert versions_of(RUNS, 0, 2) + versions_of(RUNS, 2, 4) == versions_of(RUNS, 0, 6)


def test_no_tokens_have_no_versions() -> None:
    assert versions_of([], 0, 0) == ()
