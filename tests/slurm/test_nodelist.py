"""Slurm's lists of hosts. Beside scontrol, on the cluster: tests/cluster/test_nodelist.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm.query.nodelist import expand, expand_counts, fold


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("mx[0-2,07-08],a1", "mx0 mx1 mx2 mx07 mx08 a1"),
        ("r[1-2]n[09-10]", "r1n09 r1n10 r2n09 r2n10"),
        ("a[9-11]", "a9 a10 a11"),
        ("node-1.site", "node-1.site"),
        ("", ""),
    ],
)
def test_a_list_is_written_out_in_its_order(text, names):
    assert expand(text) == names.split()


@pytest.mark.parametrize("text", ["mx[0-3", "mx0-3]", "mx[3-1]", "mx[a]", "mx[]", "mx[[1]]"])
def test_what_is_not_such_a_list_is_an_error_that_shows_it(text):
    with pytest.raises(ValueError, match="not a node list"):
        expand(text)


@given(st.text(alphabet="mx0123[]-,() é٣", max_size=12))
def test_no_text_breaks_the_parser(text):
    try:
        assert all(isinstance(name, str) for name in expand(text))
    except ValueError as error:
        assert "not a node list" in str(error)


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(1, 5)), min_size=1, max_size=4))
def test_counts_of_tasks_are_one_a_node(parts):
    text = ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in parts)
    assert expand_counts(text) == [count for count, times in parts for _ in range(times)]
    with pytest.raises(ValueError, match="not a list of counts"):
        expand_counts(f"{text},x")


def test_names_are_folded_in_their_order():
    assert fold(["mx0", "mx1", "mx2", "mx7", "a1", "login"]) == "mx[0-2,7],a1,login"
    assert fold(["n08", "n09", "n10", "n9", "n100"]) == "n[08-10,9,100]"
    assert fold([]) == ""


@given(st.lists(st.from_regex(r"[a-z]{1,2}[0-9]{0,3}", fullmatch=True), max_size=20))
def test_what_is_folded_expands_to_itself(names):
    assert expand(fold(names)) == names
