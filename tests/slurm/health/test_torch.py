"""The checks that compute run in processes that can be killed, and what came before a hang is known."""

import sys
import time

import pytest

from slurm.health import torch as module
from slurm.health.torch import check_card, check_compute, check_tokenizer


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """`stand_in(script)`: what runs instead of python, as if it were a card's."""

    def put(script):
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(path))

    return put


def verdicts(findings):
    return {finding.check: finding.verdict for finding in findings}


STARTED = """echo '{"what": "started"}'"""
DEVICE = f"{STARTED}; " """echo '{"what": "device", "kind": "cuda", "name": "MetaX C550", "torch": "2.8.0+metax3.7"}'"""
STREAM = """echo '{"what": "stream", "right": true}'"""
MATMUL = """echo '{"what": "matmul", "right": true, "gflops": 200000.0, "size": 8192, "dtype": "bfloat16"}'"""


def test_the_cpu_multiplies_exactly_and_has_no_stream():
    found = {finding.check: finding for finding in check_compute("mx0", 0)}
    assert found["matmul"].verdict == "ok"
    assert "exact" in found["matmul"].measured
    assert "GFLOP/s" in found["matmul"].measured
    assert (found["stream"].verdict, found["stream"].measured) == ("not run", "no card")


def test_a_stream_that_hangs_is_told_apart_from_a_product_that_works(stand_in):
    stand_in(f"{DEVICE}; {MATMUL}; exec sleep 60")
    begin = time.monotonic()
    found = {finding.check: finding for finding in check_card("mx0", 3, seconds=1)}
    assert time.monotonic() - begin < 30
    assert verdicts(found.values()) == {"torch": "ok", "matmul": "ok", "stream": "bad"}
    assert found["stream"].measured == "card 3, MetaX C550: no answer within 1 s"


def test_a_slow_import_tells_nothing_of_the_card(stand_in, monkeypatch):
    monkeypatch.setattr(module, "START_SECONDS", 60.0)
    stand_in(f"sleep 2; {DEVICE}; {MATMUL}; {STREAM}")
    assert set(verdicts(check_card("mx0", 3, seconds=1)).values()) == {"ok"}
    monkeypatch.setattr(module, "START_SECONDS", 1.0)
    stand_in("exec sleep 60")
    (finding,) = check_card("mx0", 3, seconds=1)
    assert (finding.verdict, finding.measured) == ("unknown", "torch is not imported after 1 s")
    monkeypatch.setattr(module, "START_SECONDS", 60.0)
    stand_in(f"{STARTED}; exec sleep 60")
    (finding,) = check_card("mx0", 3, seconds=1)
    assert (finding.verdict, finding.measured) == ("bad", "no answer within 1 s")


def test_all_cards_are_tried_at_once(stand_in):
    stand_in(f"{DEVICE}; sleep 5; {MATMUL}; {STREAM}")
    begin = time.monotonic()
    found = check_compute("mx0", 8)
    assert time.monotonic() - begin < 30  # one after the other would take 40
    assert [finding.verdict for finding in found] == ["ok"] * 24
    assert {finding.measured.partition(",")[0] for finding in found if finding.check == "stream"} == {
        f"card {card}" for card in range(8)
    }


def test_a_wrong_product_is_bad(stand_in):
    stand_in(f"{DEVICE}; {MATMUL}".replace("true", "false"))
    assert verdicts(check_compute("mx0", 0))["matmul"] == "bad"


def test_an_environment_without_torch_is_bad_and_says_what_to_install(stand_in):
    stand_in("""echo "ModuleNotFoundError: No module named 'torch'" >&2; exit 1""")
    (finding,) = check_compute("mx0", 0)
    assert finding.verdict == "bad"
    assert "docs/install.md" in finding.way_out
    (finding,) = check_compute("login", 0, needed=False)
    assert finding.verdict == "not run"


def test_the_tokenizer_gives_back_what_it_got():
    (finding,) = check_tokenizer("mx0", {"environment": {"name": "arithmetic"}, "model": {}})
    assert finding.verdict == "ok"


def test_a_tokenizer_that_lacks_a_character_is_bad_and_names_it():
    model = {"architecture": {"alphabet": "0123456789+-*/=;:,."}}
    (finding,) = check_tokenizer("mx0", {"environment": {"name": "arithmetic"}, "model": model})
    assert finding.verdict == "bad"
    assert "'>' in" in finding.measured
