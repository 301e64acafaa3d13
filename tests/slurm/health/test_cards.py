"""What the vendor's tool says of a node's cards becomes findings: unknown is unknown, and never well."""

from slurm.devices.device import Device, Devices
from slurm.health.cards import check_cards, judge_devices

WELL = Device(index=0, state="Available", ecc_uncorrected=0)


def judged(*devices, wanted=0, kind="metax", trouble=()):
    return {
        finding.check: finding
        for finding in judge_devices("mx0", Devices(kind, devices=devices, trouble=trouble), wanted)
    }


def test_cards_that_are_well_are_one_row():
    found = judged(WELL, Device(index=1, state="Available", ecc_uncorrected=0), wanted=2)
    assert list(found) == ["cards"]
    assert (found["cards"].verdict, found["cards"].measured) == ("ok", "2 of the kind metax, 2 healthy")


def test_a_card_that_is_not_available_or_has_errors_is_bad_and_named():
    found = judged(WELL, Device(index=3, state="Unavailable"), Device(index=5, state="Available", ecc_uncorrected=2))
    assert (found["card 3"].verdict, found["card 5"].verdict) == ("bad", "bad")
    assert "2 uncorrectable ECC errors" in found["card 5"].measured
    assert found["cards"].verdict == "unknown"


def test_a_state_that_nobody_knows_is_unknown():
    assert judged(Device(index=0, state="Thinking"))["card 0"].verdict == "unknown"
    assert judged(Device(index=0))["card 0"].verdict == "unknown"


def test_missing_cards_are_bad_unless_the_tool_was_not_understood():
    assert judged(WELL, wanted=8)["cards"].verdict == "bad"
    assert judged(kind="cpu", wanted=8)["cards"].verdict == "bad"
    assert judged(kind="unknown", wanted=8)["cards"].verdict == "unknown"
    assert judged(wanted=8, trouble=("a layout that nobody has seen",))["cards"].verdict == "unknown"


def test_a_tool_that_hangs_is_bad():
    found = judged(trouble=("`mx-smi` gave no answer in 20 s and was ended; the driver may be stuck",))
    assert found["vendor's tool"].verdict == "bad"


def test_a_node_without_cards_is_content_and_two_lists_of_visible_cards_are_not(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("MACA_VISIBLE_DEVICES", "2,3")
    found = {finding.check: finding for finding in check_cards("mx0", 0)}
    assert found["cards"].verdict == "ok"
    assert found["visible cards"].verdict == "bad"
    monkeypatch.setenv("MACA_VISIBLE_DEVICES", "0,1")
    assert {finding.verdict for finding in check_cards("mx0", 0)} == {"ok"}
