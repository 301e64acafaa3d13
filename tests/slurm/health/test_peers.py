"""Two nodes on one machine: what one asks, the other does; what one cannot reach is named."""

import socket
import time

import pytest

from slurm.health import peers
from slurm.health.peers import check_clock, check_connect, check_shared_lock, check_visible
from slurm.health.serve import Connection, Peer, serve


@pytest.fixture
def other(tmp_path):
    """A peer that serves `tmp_path`."""
    return Peer("localhost", "127.0.0.1", serve(tmp_path, "secret"), "secret")


def test_a_peer_is_reached_by_name_and_by_interface(other):
    found = check_connect("mx0", [other])
    assert [(finding.check, finding.verdict) for finding in found] == [
        ("connect by name", "ok"),
        ("connect by interface", "ok"),
    ]


def test_a_peer_that_cannot_be_reached_is_named_with_its_address(other):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    closed = Peer("no-such-host.invalid", "127.0.0.1", port, "secret")
    by_name, by_interface = check_connect("mx0", [other, closed])
    assert by_name.verdict == by_interface.verdict == "bad"
    assert f"no-such-host.invalid at no-such-host.invalid:{port}" in by_name.measured
    assert f"at 127.0.0.1:{port}: " in by_interface.measured
    assert "slurm.interface" in by_name.way_out


def test_the_clocks_of_one_machine_agree_to_within_what_was_measured(other):
    (finding,) = check_clock("mx0", other)
    assert (finding.check, finding.verdict) == ("clock against localhost", "ok")
    assert "known to 0.0" in finding.measured


def test_a_clock_that_is_off_is_found_with_its_sign(tmp_path, monkeypatch):
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 100)
    ahead = Peer("localhost", "127.0.0.1", serve(tmp_path, "secret"), "secret")  # a process with this clock
    monkeypatch.undo()
    (finding,) = check_clock("mx0", ahead)
    assert finding.verdict == "bad"
    assert finding.measured.startswith(("-100.0", "-99.9"))


def test_a_file_of_a_peer_is_seen_and_its_lock_keeps_out(tmp_path, other):
    (visible,) = check_visible(tmp_path, "mx0", other)
    (lock,) = check_shared_lock(tmp_path, "mx0", other)
    assert (visible.verdict, lock.verdict) == ("ok", "ok")


def test_a_file_that_never_comes_and_a_lock_that_is_not_shared_are_bad(tmp_path, other, monkeypatch):
    monkeypatch.setattr(peers, "VISIBLE_SECONDS", 0.3)
    mine = tmp_path / "another file system"
    mine.mkdir()
    (visible,) = check_visible(mine, "mx0", other)
    (lock,) = check_shared_lock(mine, "mx0", other)
    assert (visible.verdict, lock.verdict) == ("bad", "bad")
    assert "one file system" in visible.way_out


def test_nobody_is_served_without_the_token(other):
    stranger = Connection("127.0.0.1", Peer("localhost", None, other.port, "guessed"))
    with pytest.raises(ConnectionError):
        stranger.ask("time")
    with socket.create_connection(("127.0.0.1", other.port), timeout=5) as noise:
        noise.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert noise.recv(100) == b""
