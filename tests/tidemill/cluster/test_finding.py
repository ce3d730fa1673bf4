"""Which job is meant, and what is said when that is not clear."""

from tidemill.cluster.finding import unclear


def test_the_nearest_name_is_offered_or_all_names() -> None:
    assert unclear("quickstat", "ml", ["quickstart", "large"], []).endswith("did you mean quickstart?")
    assert unclear("zz", "ml", ["quickstart", "large"], []).endswith("there are: quickstart, large")


def test_another_namespace_that_has_it_comes_before_a_name_that_is_near() -> None:
    assert unclear("tiny", "ml", ["tinny"], ["lab"]) == "rljob tiny is not in namespace ml; namespace lab has it: -n lab"
    assert unclear(None, "ml", [], ["lab"]) == "namespace ml has no jobs; namespace lab has one: -n lab"


def test_where_there_is_nothing_at_all_the_next_step_is_told() -> None:
    assert (
        unclear("tiny", "ml", [], []) == "rljob tiny is not in namespace ml, which has no jobs; kubectl apply one, or name another namespace with -n"
    )
    assert unclear(None, "ml", ["b", "a"], []) == "namespace ml has 2 jobs; say which: a, b"
