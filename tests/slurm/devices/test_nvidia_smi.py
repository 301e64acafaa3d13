import pytest

from slurm.devices.device import Process, health
from slurm.devices.nvidia import CARDS, ECC, TOPO, nvidia_devices, read_nvidia


def test_an_nvidia_node_is_read_through_the_same_interface(tool, nvidia_answers):
    node = read_nvidia(tool("nvidia-smi", nvidia_answers))
    card = node.devices[1]
    assert (node.kind, node.driver, node.runtime, node.trouble, node.raw) == ("nvidia", "560.12.04", "12.6", (), {})
    assert (card.name, card.bus_id, card.state) == ("NVIDIA H100 80GB HBM3", "0000:43:00.0", "Available")
    assert (card.memory_used, card.memory_total, card.temperature) == (70004, 81559, 53)
    assert (card.power, card.power_cap, card.utilisation) == (568.5, 700, 98)
    assert (card.ecc_corrected, card.ecc_uncorrected, card.retired_pages) == (3, 0, None)
    assert [health(device) for device in node.devices] == ["healthy"] * 2
    assert node.links["GPU0"] == {"GPU1": "NV18", "NIC0": "PXB"}
    assert node.nics == {"NIC0": "mlx5_4"}
    assert node.processes == (Process(1, 5120, "/usr/bin/python3.11", 69998),)


def test_columns_in_another_order_and_new_ones_say_the_same(nvidia_answers):
    lines = [line.split(", ") for line in nvidia_answers[CARDS].splitlines()]
    turned = "\n".join(", ".join([*reversed(line), "new"]) for line in lines)
    before, after = nvidia_devices(nvidia_answers), nvidia_devices({**nvidia_answers, CARDS: turned})
    assert after.devices == before.devices


@pytest.mark.parametrize("said", ["[GPU is lost]", "[Unknown Error]", "ERR!", "[GPU requires reset]"])
def test_a_lost_card_is_bad(nvidia_answers, said):
    node = nvidia_devices({**nvidia_answers, CARDS: nvidia_answers[CARDS].replace("53, 568.50 W", f"{said}, 568.50 W")})
    assert [health(device) for device in node.devices] == ["healthy", f"bad: its state is {said!r}"]


def test_a_card_without_ecc_is_unknown(nvidia_answers):
    node = nvidia_devices({**nvidia_answers, ECC: nvidia_answers[ECC].replace(", 0, [N/A]", ", [N/A], [N/A]")})
    assert {health(device) for device in node.devices} == {"unknown: its uncorrectable ECC errors could not be read"}


def test_uncorrectable_errors_are_bad_and_retired_pages_unknown(nvidia_answers):
    node = nvidia_devices({**nvidia_answers, ECC: nvidia_answers[ECC].replace("3, 0, [N/A]", "3, 0, 7")})
    assert health(node.devices[1]).startswith("unknown: 7 retired pages")
    node = nvidia_devices({**nvidia_answers, ECC: nvidia_answers[ECC].replace("3, 0, [N/A]", "3, 5, 7")})
    assert health(node.devices[1]) == "bad: 5 uncorrectable ECC errors"


def test_a_driver_that_does_not_answer_is_trouble(tool):
    node = read_nvidia(
        tool("nvidia-smi", shell="echo 'NVIDIA-SMI has failed because it could not talk to the driver'; exit 9")
    )
    assert node.trouble[0].startswith("`nvidia-smi --query-gpu=index")
    assert node.trouble[-1] == "nvidia-smi shows no card"
    assert CARDS in "".join(node.raw) and TOPO in "".join(node.raw)
