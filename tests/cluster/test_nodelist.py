"""Our reader of Slurm's lists of hosts against scontrol."""

import os
import subprocess

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from slurm.query.nodelist import expand

NAMES = st.from_regex(r"\A[a-z]{1,3}-?\Z")
WIDTHS = st.integers(1, 4)


@st.composite
def ranges(draw: st.DrawFn) -> str:
    first, more, width = draw(st.integers(0, 120)), draw(st.integers(0, 12)), draw(WIDTHS)
    return f"{first:0{width}d}-{first + more:0{width}d}" if more else f"{first:0{width}d}"


@st.composite
def lists(draw: st.DrawFn) -> str:
    """Names with no bracket, one or two, the last of them at the end, as Slurm has them."""
    items: list[str] = []
    for _ in range(draw(st.integers(1, 4))):
        brackets = draw(st.lists(st.lists(ranges(), min_size=1, max_size=3), max_size=2))
        items.append("".join([draw(NAMES), *(f"[{','.join(parts)}]" for parts in brackets)]))
    return ",".join(items)


@pytest.mark.cluster
@given(lists())
@example("mx[0-3,07-09],a1")
@example("r[1-2]n[08-11],b")
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_names_are_those_of_scontrol(slurm_conf, text):
    command, environment = ["scontrol", "show", "hostnames", text], os.environ | {"SLURM_CONF": slurm_conf}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert expand(text) == done.stdout.split()
