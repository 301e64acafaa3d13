"""Layouts that nobody has seen: never an exception, and never `healthy` for a card that is not said to be available."""

import random
import re
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm.devices import nvidia
from slurm.devices.device import Devices, health
from slurm.devices.events import is_fault, scan_log
from slurm.devices.metax import ECC, LIST, PARSERS, REASON, TABLE, metax_devices
from slurm.devices.nvidia import nvidia_devices

fuzz = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
WORDS = sorted({word for path in (Path(__file__).parent / "fixtures").iterdir() for word in path.read_text().split()})
PIECES = [
    *WORDS,
    "|",
    "GPU#",
    "N/A",
    "{",
    "}",
    "[",
    "\x00",
    "\x1b[4m",
    "99999999999999999999",
    "1e999",
    "-1",
    " ",
    "\n",
    "\n",
    "\t",
]
anything = st.one_of(
    st.text(),
    st.lists(st.sampled_from(PIECES), max_size=80).map(" ".join),
    st.lists(st.sampled_from(PIECES), max_size=80).map("".join),
    st.binary(max_size=200).map(lambda data: data.decode(errors="replace")),
)


def healthy(node: Devices) -> list[int]:
    return [device.index for device in node.devices if health(device) == "healthy"]


@fuzz
@given(st.dictionaries(st.sampled_from(list(PARSERS)), anything))
def test_any_text_gives_an_answer_of_mx_smi_that_is_not_healthy_by_accident(texts):
    node = metax_devices(texts)
    if not any(re.search("available", text, re.IGNORECASE) for text in texts.values()):
        assert healthy(node) == []
    assert node.trouble or node.devices


@fuzz
@given(
    st.dictionaries(
        st.sampled_from([nvidia.CARDS, nvidia.ECC, nvidia.TABLE, nvidia.TOPO, nvidia.PROCESSES]), anything, min_size=1
    )
)
def test_any_text_gives_an_answer_of_nvidia_smi(texts):
    node = nvidia_devices(texts)
    assert node.trouble or node.devices


@fuzz
@given(anything)
def test_any_text_is_a_log(text):
    assert all(event.line in text and is_fault(event) in (True, False) for event in scan_log(text))


@fuzz
@given(st.data())
def test_a_layout_that_nobody_has_seen_is_unknown_and_its_text_is_kept(metax_answers, data):
    words = st.text("abcdefghijklmnopqrstuvwxyz0123456789:/%. ", min_size=3, max_size=40)
    text = "\n".join(data.draw(st.lists(words, min_size=1, max_size=12)))
    arguments = data.draw(st.sampled_from([TABLE, LIST, REASON]))
    node = metax_devices({arguments: text, ECC: metax_answers[ECC]})
    assert healthy(node) == []
    assert not text.strip() or node.raw == {f"mx-smi {arguments}".strip(): text}


@fuzz
@given(st.integers(0, 5000))
def test_a_table_that_ends_early_has_only_the_cards_that_it_shows_whole(metax_answers, length):
    cut = metax_answers[TABLE][:length]
    node = metax_devices({TABLE: cut, ECC: metax_answers[ECC]})
    whole = [
        index
        for index in range(4)
        if re.search(rf"^\| {index} .*\|$\n^\|.* Available +\|$", cut.split("Process")[0], re.MULTILINE)
    ]
    assert healthy(node) == whole


@fuzz
@given(st.integers(0, 5000))
def test_ecc_counts_that_end_early_make_no_card_healthy_that_was_not_counted(metax_answers, length):
    cut = metax_answers[ECC][:length]
    counted = [
        index for index in range(4) if re.search(rf"GPU#{index} [^#]*DRAM Uncorrectable +: 0", cut, re.MULTILINE)
    ]
    assert healthy(metax_devices({TABLE: metax_answers[TABLE], ECC: cut})) == counted


@fuzz
@given(st.sampled_from([TABLE, LIST, REASON]), st.text(st.characters(exclude_characters="|"), max_size=20))
def test_another_word_in_the_state_column_is_never_healthy(metax_answers, arguments, word):
    """Also when the other answers still say that the card is available."""
    lines = metax_answers[arguments].splitlines()
    (*_, last) = [number for number, line in enumerate(lines) if "available" in line.lower()]
    lines[last] = re.sub("available", lambda _: " ".join(word.split()), lines[last], flags=re.IGNORECASE)
    found = healthy(metax_devices({**metax_answers, arguments: "\n".join(lines)}))
    if " ".join(word.split()) and " ".join(word.split()).casefold() != "available":
        assert 3 not in found
    assert {0, 1, 2} <= set(found)


def columns(text: str, change: Callable[[list[str]], list[str]]) -> str:
    """The table of cards with `change` done to the cells of each of its lines."""
    table, process, rest = text.partition("| Process:")
    lines = table.splitlines()
    for number, line in enumerate(lines):
        if line.count("|") == 5:
            lines[number] = "|" + "|".join(change(line[1:-1].split("|"))) + "|"
    return "\n".join(lines) + process + rest


@fuzz
@given(st.permutations(range(4)))
def test_columns_in_another_order_say_the_same(metax_answers, order):
    turned = columns(metax_answers[TABLE], lambda cells: [cells[number] for number in order])
    assert metax_devices({TABLE: turned}).devices == metax_devices({TABLE: metax_answers[TABLE]}).devices


@fuzz
@given(st.randoms(use_true_random=False))
def test_columns_of_another_width_say_the_same(metax_answers, source):
    def widen(cells: list[str]) -> list[str]:
        return [
            re.sub(" {2,}", lambda _: " " * source.randint(2, 9), cell) + " " * source.randint(0, 9) for cell in cells
        ]

    turned = columns(metax_answers[TABLE], widen)
    assert metax_devices({TABLE: turned}).devices == metax_devices({TABLE: metax_answers[TABLE]}).devices


@fuzz
@given(st.integers(0, 3))
def test_a_dropped_column_is_unknown_and_nothing_else_changes(metax_answers, dropped):
    turned = columns(metax_answers[TABLE], lambda cells: cells[:dropped] + cells[dropped + 1 :])
    node = metax_devices({TABLE: turned, ECC: metax_answers[ECC]})
    has_number, has_state = dropped != 1, dropped != 3
    assert healthy(node) == ([0, 1, 2, 3] if has_number and has_state else [])
    assert all((device.memory_total is None) == (dropped in (1, 2)) for device in node.devices)
    assert has_number or node.raw == {"mx-smi": turned}


@fuzz
@given(st.integers(0, 3), st.integers(0, 4))
def test_a_column_that_stands_there_twice_or_is_new_says_the_same(metax_answers, doubled, place):
    twice = columns(metax_answers[TABLE], lambda cells: [*cells[:place], cells[doubled], *cells[place:]])
    new = columns(metax_answers[TABLE], lambda cells: [*cells[:place], " Serial ", *cells[place:]])
    before = metax_devices({TABLE: metax_answers[TABLE]}).devices
    assert metax_devices({TABLE: twice}).devices == before
    assert metax_devices({TABLE: new}).devices == before


@fuzz
@given(st.data())
def test_a_mutated_answer_has_no_more_healthy_cards_than_it_calls_available(metax_answers, data):
    texts = mutated(metax_answers, data)
    node = metax_devices(texts)
    said = sum(len(re.findall(r"(?<![a-z])available", texts[key], re.IGNORECASE)) for key in (TABLE, LIST, REASON))
    counted = len(re.findall("DRAM Uncorrectable", texts[ECC], re.IGNORECASE))
    assert len(healthy(node)) <= min(said, counted)


def mutated(answers: dict[str, str], data: st.DataObject) -> dict[str, str]:
    """The answers of a tool, one to four of them mutated."""
    texts = dict(answers)
    source = random.Random(data.draw(st.integers()))
    for arguments in data.draw(st.lists(st.sampled_from(list(texts)), min_size=1, max_size=4)):
        texts[arguments] = mutate(texts[arguments], source)
    return texts


def mutate(text: str, source: random.Random) -> str:
    """One to five lines dropped, doubled, moved, or with a byte changed."""
    lines = text.encode().split(b"\n")
    for _ in range(source.randint(1, 5)):
        number = source.randrange(len(lines))
        line = lines[number]
        kind = source.randrange(4)
        if kind == 0 and len(lines) > 1:
            del lines[number]
        elif kind == 1:
            lines.insert(source.randrange(len(lines)), line)
        elif kind == 2:
            lines.insert(source.randrange(len(lines)), lines.pop(number))
        elif line:
            place = source.randrange(len(line))
            lines[number] = line[:place] + bytes([source.randrange(256)]) + line[place + 1 :]
    return b"\n".join(lines).decode(errors="replace")


@fuzz
@given(st.data())
def test_a_mutated_answer_of_nvidia_smi_is_healthy_only_with_a_count_of_errors(nvidia_answers, data):
    texts = mutated(nvidia_answers, data)
    for device in nvidia_devices(texts).devices:
        is_whole = device.memory_used is not None and device.temperature is not None and device.ecc_uncorrected == 0
        assert health(device) != "healthy" or is_whole
