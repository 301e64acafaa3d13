import os
import subprocess
import sys
import time

import psutil

from slurm.devices import command, read
from slurm.devices.command import ask
from slurm.devices.device import health
from slurm.devices.metax import DMON, JSON, LIST, REASON, TABLE
from slurm.devices.read import count_cards, kind_of_node, read_devices
from slurm.wait.local import is_alive


def test_a_metax_node_is_read_through_its_tool(tool, no_tools, monkeypatch, metax_answers):
    path = tool("mx-smi", metax_answers)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}:/bin:/usr/bin")
    node = read_devices(no_tools)
    assert (node.kind, node.driver, node.runtime, node.trouble) == ("metax", "3.5.2", "3.4.1.6", ())
    assert [health(device) for device in node.devices] == ["healthy"] * 4
    assert node.links["GPU0"]["NIC0"] == "PIX" and node.nics["NIC1"] == "xscale_1"
    assert [process.device for process in node.processes] == [2, 3]


def test_what_the_first_answers_leave_open_is_asked_of_json_and_dmon(tool, tmp_path, answer):
    answers = {LIST: "", REASON: "", JSON: answer("answer.json"), DMON: answer("dmon.csv")}
    path = tool(
        "mx-smi", {**answers, TABLE: answer("table.txt").replace("GPU-State", "Something").replace("Temp ", "Warm ")}
    )
    node = read.read_metax(path)
    assert [device.state for device in node.devices][:2] == ["Available", "unavailable: link training"]
    assert [device.temperature for device in node.devices] == [45, 44, 67, 65]
    assert (tmp_path / "mx-smi.log").read_text().splitlines()[-2:] == [JSON, DMON]


def test_a_tool_that_hangs_is_a_finding_and_is_asked_once(tool, tmp_path, monkeypatch):
    path = tool("mx-smi", shell="sleep 611.5 & sleep 611.5")
    monkeypatch.setattr(command, "SECONDS", 0.5)
    before = time.monotonic()
    node = read.read_metax(path)
    assert time.monotonic() - before < 30
    assert node.trouble[0].startswith("`mx-smi` gave no answer in 0.5 s and was ended")
    assert node.trouble[1:] == ("mx-smi shows no card",)
    assert len((tmp_path / "mx-smi.log").read_text().splitlines()) == 1
    left = [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "611.5"]]
    assert not [p for p in psutil.wait_procs(left, 5)[1] if is_alive(p)]  # killed, though perhaps not dead at once


def test_a_tool_whose_child_holds_on_to_the_output_keeps_nobody_waiting(tool, monkeypatch):
    path = tool("mx-smi", shell="setsid sleep 61.5 & exit 0")
    monkeypatch.setattr(command, "SECONDS", 0.5)
    before = time.monotonic()
    assert ask(path, "-L").hung
    assert time.monotonic() - before < 30
    for left in [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "61.5"]]:
        left.kill()


def test_a_tool_that_fails_is_a_finding(tool):
    node = read.read_metax(tool("mx-smi", shell="echo no device found >&2; exit 3"))
    assert node.devices == ()
    assert node.trouble[0] == "`mx-smi` ended with 3: no device found"
    assert node.trouble[-1] == "mx-smi shows no card"


def test_an_answer_that_is_no_text_is_kept(tool):
    text = ask(tool("mx-smi", shell=r"printf '\377\376\000GPU#0\n'")).text
    assert text.endswith("GPU#0\n") and "�" in text


def test_a_long_answer_is_cut(tool, monkeypatch):
    monkeypatch.setattr(command, "MOST_BYTES", 1000)
    assert len(ask(tool("mx-smi", shell="yes | head -c 100000")).text) == 1000


def test_a_tool_that_cannot_be_started_is_a_finding(tmp_path):
    (tmp_path / "mx-smi").write_text("\x00 no program")
    (tmp_path / "mx-smi").chmod(0o755)
    assert "cannot be started" in ask(tmp_path / "mx-smi").trouble


def test_a_plain_node_has_cores_and_memory(no_tools, monkeypatch):
    monkeypatch.setattr(read, "torch_version", lambda: "2.13.0+cpu")
    node = read_devices(no_tools)
    assert (node.kind, node.devices, node.trouble) == ("cpu", (), ())
    assert node.cores == len(os.sched_getaffinity(0))
    assert node.memory == psutil.virtual_memory().total / 2**20


def test_the_vendors_folder_is_searched_too(no_tools, monkeypatch):
    path = no_tools / "opt/mxdriver/bin/mx-smi"
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    assert kind_of_node(no_tools) == "metax"


def put_card(root, vendor):
    for folder in ("dev/dri", "sys/class/drm/renderD128/device"):
        (root / folder).mkdir(parents=True)
    (root / "dev/dri/renderD128").touch()
    (root / "sys/class/drm/renderD128/device/vendor").write_text(f"{vendor}\n")


def test_a_card_without_its_tool_is_unknown(no_tools, monkeypatch):
    monkeypatch.setattr(read, "torch_version", lambda: "")
    put_card(no_tools, "0x9999")
    node = read_devices(no_tools)
    assert (node.kind, count_cards(no_tools)) == ("unknown", 1)
    assert node.trouble[0].startswith("/dev/dri/renderD128 of MetaX is there, but neither mx-smi nor nvidia-smi")
    (no_tools / "dev/mxcd").touch()
    assert read_devices(no_tools).trouble[0].startswith("/dev/mxcd is there")


def test_the_graphics_chip_of_a_servers_console_is_no_card(no_tools, monkeypatch):
    monkeypatch.setattr(read, "torch_version", lambda: "")
    put_card(no_tools, "0x1a03")
    assert kind_of_node(no_tools) == "cpu"


def test_the_vendors_torch_without_its_tool_is_unknown_also_beside_another_tool(no_tools, tool, monkeypatch):
    monkeypatch.setattr(read, "torch_version", lambda: "2.10.0+metax3.8.0.7")
    node = read_devices(no_tools)
    assert node.kind == "unknown"
    assert "torch is MetaX's build, but there is no mx-smi" in node.trouble[0]
    monkeypatch.setenv("PATH", str(tool("nvidia-smi").parent))
    assert kind_of_node(no_tools) == "unknown"


def test_no_read_of_a_node_imports_torch(no_tools):
    code = "from slurm.devices.read import read_devices; read_devices(); import sys; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"
