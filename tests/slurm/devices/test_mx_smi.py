from slurm.devices.device import Device, Process, health
from slurm.devices.dmon import parse_dmon
from slurm.devices.ecc import parse_ecc
from slurm.devices.listing import parse_json, parse_list, parse_unavailable
from slurm.devices.metax import ECC, LIST, REASON, TABLE, metax_devices
from slurm.devices.table import parse_processes, parse_table
from slurm.devices.topo import parse_topo

CARD_2 = Device(
    index=2,
    name="MetaX C550",
    bus_id="0000:9a:00.0",
    state="Available",
    memory_used=40212,
    memory_total=65536,
    temperature=63,
    power=402,
    power_cap=450,
    utilisation=97,
)


def test_the_new_table_tells_all_of_a_card(answer):
    found = parse_table(answer("table.txt"))
    assert found.devices[2] == CARD_2
    assert [device.index for device in found.devices] == [0, 1, 2, 3]
    assert (found.driver, found.runtime, found.attached, found.left) == ("3.5.2", "3.4.1.6", 4, ())


def test_the_old_table_has_no_state_and_an_unknown_runtime(answer):
    found = parse_table(answer("table_old.txt"))
    card = found.devices[1]
    assert (card.index, card.name, card.bus_id, card.state) == (1, "MetaX C500", "0000:1c:00.0", None)
    assert (card.temperature, card.power, card.power_cap, card.memory_used) == (39, 62, 350, 845)
    assert (found.driver, found.runtime, found.left) == ("2.13.1", None, ())


def test_an_old_table_alone_is_unknown_until_another_answer_says_available(answer):
    old = {TABLE: answer("table_old.txt"), ECC: "\n".join(answer("ecc.txt").split("GPU#2")[:1]).replace(": 4", ": 2")}
    assert [health(device) for device in metax_devices(old).devices] == ["unknown: this mx-smi shows no state"] * 2
    said = "\n".join(answer("unavailable.txt").splitlines()[:2])
    assert [health(device) for device in metax_devices({**old, REASON: said}).devices] == ["healthy"] * 2
    said = said.replace("1c:00.0   available", "1c:00.0   pcie link is down")
    cards = metax_devices({**old, REASON: said}).devices
    assert [health(device) for device in cards] == ["healthy", "bad: its state is 'unavailable: pcie link is down'"]


def test_a_list_is_read_with_and_without_uuids_and_in_any_order(answer):
    plain, with_uuid = parse_list(answer("list.txt")), parse_list(answer("list_uuid.txt"))
    assert plain.devices[3] == Device(3, "MXC550", None, "0000:9b:00.0", "Available")
    assert with_uuid.devices[3].uuid == "GPU-0b6d3c1e-58a2-47f0-9c11-2d7e5a90b447"
    assert plain.left == with_uuid.left == ()
    (turned,) = parse_list("GPU#7  Available  0000:9C:00.0  MXC588").devices
    assert turned == Device(7, "MXC588", None, "0000:9c:00.0", "Available")


def test_a_list_with_a_column_that_nobody_knows_calls_no_card_available():
    (card,) = parse_list("GPU#0  MXC550  0000:1b:00.0  Available  Degraded").devices
    assert health(card) == "unknown: nobody has told us what the state 'Available Degraded' means"


def test_an_unavailable_card_says_why():
    found = parse_unavailable("GPU#1  MXC550  0000:1c:00.0   sysfs says nothing")
    assert [device.state for device in found.devices] == ["unavailable: sysfs says nothing"]
    assert health(found.devices[0]).startswith("bad: ")


def test_ecc_counts_are_summed_over_the_memories(answer):
    card = parse_ecc(answer("ecc.txt")).devices[3]
    assert (card.ecc_corrected, card.ecc_uncorrected, card.retired_pages, card.bus_id) == (3, 0, 0, "0000:9b:00.0")
    worse = parse_ecc(
        answer("ecc.txt").replace("DRAM Uncorrectable                        : 0", "DRAM Uncorrectable : 2")
    )
    assert [device.ecc_uncorrected for device in worse.devices] == [2] * 4


def test_ecc_counts_of_one_memory_alone_are_not_read():
    text = "GPU#0  MXC550  0000:1b:00.0\n  ECC Errors\n    SRAM Uncorrectable : 0\n    SRAM Correctable : 0\n"
    (card,) = parse_ecc(text).devices
    assert (card.ecc_corrected, card.ecc_uncorrected) == (0, None)
    (card,) = parse_ecc(text + "    DRAM Uncorrectable : N/A\n").devices
    assert card.ecc_uncorrected is None
    (card,) = parse_ecc(text + "    DRAM Uncorrectable Threshold : 0\n").devices
    assert card.ecc_uncorrected is None
    (card,) = parse_ecc(text.replace("SRAM Uncorrectable : 0", "SRAM Uncorrectable : 1")).devices
    assert card.ecc_uncorrected == 1


def test_links_are_read_by_their_ends(answer):
    found = parse_topo(answer("topo_m.txt"))
    assert found.links["GPU0"] == {"GPU1": "MX", "GPU2": "SYS", "GPU3": "SYS"}
    found = parse_topo(answer("topo_n.txt"))
    assert (found.links["NIC1"]["GPU2"], found.links["GPU2"]["NIC0"]) == ("PIX", "SYS")
    assert (found.nics, found.left) == ({"NIC0": "xscale_0", "NIC1": "xscale_1"}, ())


def test_links_that_do_not_fit_are_left_out(answer):
    shifted = answer("topo_m.txt").replace("GPU1    MX      X ", "GPU1    X       MX")
    assert "GPU1" not in parse_topo(shifted).links
    one_sided = parse_topo(answer("topo_m.txt").replace("GPU1    MX      X ", "GPU1    SYS     X "))
    assert "GPU1" not in one_sided.links["GPU0"] and "GPU0" not in one_sided.links["GPU1"]
    assert one_sided.left == ("GPU0 to GPU1: MX, and back: SYS",)
    unknown_word = parse_topo(answer("topo_m.txt").replace("GPU1    MX      X ", "GPU1    WARP    X "))
    assert "GPU1" not in unknown_word.links


def test_dmon_is_read_by_its_names_and_units(answer):
    found = parse_dmon(answer("dmon.csv"))
    assert found.devices[2] == Device(
        2, bus_id="0000:9a:00.0", memory_total=65536, temperature=67, power=402, utilisation=97
    )
    assert found.left == ()
    in_kelvin = parse_dmon(answer("dmon.csv").replace("idx, idx, C,", "idx, idx, K,"))
    assert [device.temperature for device in in_kelvin.devices] == [None] * 4


def test_of_two_dies_the_hotter_counts():
    found = parse_dmon("dev, die, hottemp, power\nidx, idx, C, W,\n0, 0, 51, 90\n0, 1, 58, 92\n1, 0, 40, 80\n")
    assert [(device.index, device.temperature) for device in found.devices] == [(0, 58), (1, 40)]


def test_json_is_found_behind_other_text(answer):
    states = {device.index: device.state for device in parse_json(answer("answer.json")).devices}
    assert states == {0: "Available", 1: "unavailable: link training", 2: "Available", 3: "Available"}
    assert len(parse_json("warning {0000:1b:00.0}: slow\n" + answer("answer.json")).devices) == 4
    assert parse_json("mx-smi: no daemon").left == ("mx-smi: no daemon",)
    assert parse_json('{"a":' * 100_000).devices == ()


def test_processes_are_read_with_blanks_in_their_names(answer):
    found = parse_processes(answer("processes.txt"))
    assert found.processes == (Process(2, 48211, "python", 39361), Process(3, 48212, "ray worker 7", 39019))
    assert parse_processes(answer("table.txt")).left == found.left == ()


def test_a_well_node_is_healthy_and_leaves_nothing_open(metax_answers):
    node = metax_devices(metax_answers)
    assert [health(device) for device in node.devices] == ["healthy"] * 4
    assert (node.kind, node.trouble, node.raw) == ("metax", (), {})
    assert node.devices[2].uuid == "GPU-0b6d3c1e-58a2-47f0-9c11-2d7e5a90b43f"


def test_the_worse_of_two_states_is_believed(metax_answers):
    answers = {**metax_answers, LIST: metax_answers[LIST].replace("9a:00.0   Available", "9a:00.0   Lost")}
    assert health(metax_devices(answers).devices[2]) == "bad: its state is 'Lost'"


def test_two_answers_that_number_the_cards_differently_are_a_doubt(metax_answers):
    answers = {**metax_answers, ECC: metax_answers[ECC].replace("0000:1b", "0000:2b")}
    said = "unknown: two answers give it two addresses, 0000:1b:00.0 and 0000:2b:00.0"
    assert health(metax_devices(answers).devices[0]) == said


def test_a_card_that_an_answer_does_not_know_is_trouble(metax_answers):
    lines = metax_answers[LIST].splitlines()
    node = metax_devices({**metax_answers, LIST: "\n".join(lines[:-1])})
    assert node.trouble == ("`mx-smi -L` says nothing that is understood of card 3",)
    lost = "\n".join(lines[:-1])
    node = metax_devices({LIST: lost})
    assert node.trouble == ("`mx-smi -L` counts 4 cards, and 3 were understood",)
