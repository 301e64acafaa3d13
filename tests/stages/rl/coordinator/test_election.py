"""The election: real processes that are killed."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from data.transport.endpoint import Endpoint
from stages.rl.coordinator.election import stand

SECONDS = 60.0
PROGRAM = """
import sys, time
from pathlib import Path
from stages.rl.coordinator.election import stand
folder, number, candidates, start = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
election = stand(folder, "127.0.0.1", number, candidates, start)
said = folder / f"says-{number}"
while True:
    aside = said.with_suffix(".aside")
    aside.write_text(f"{time.monotonic()} {election.leader()} {election.is_leader} {election.term}")
    aside.replace(said)
    time.sleep(0.02)
"""


class Candidates:
    """Some of them, in processes of their own."""

    def __init__(self, folder: Path, count: int, start: str = "one") -> None:
        self.folder, self.count, self.start = folder, count, start
        self.processes = {number: self._begin(number) for number in range(count)}

    def _begin(self, number: int) -> "subprocess.Popen[bytes]":
        words = [str(self.folder), str(number), str(self.count), self.start]
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *words], env={**os.environ, "PYTHONPATH": str(Path.cwd())}
        )

    def kill(self, number: int) -> None:
        self.processes[number].send_signal(signal.SIGKILL)
        self.processes.pop(number).wait()
        (self.folder / f"says-{number}").unlink(missing_ok=True)

    def come_back(self, number: int) -> None:
        self.processes[number] = self._begin(number)

    def leader(self) -> int | None:
        """The one on which all that live agree."""
        said: dict[int, list[str]] = {}
        for number in self.processes:
            try:
                said[number] = (self.folder / f"says-{number}").read_text().split()
            except FileNotFoundError:
                return None
        leading = [number for number, words in said.items() if words[2] == "True"]
        agreed = {words[1] for words in said.values()}
        return leading[0] if len(leading) == 1 and len(agreed) == 1 and "None" not in agreed else None

    def term(self, number: int) -> int:
        return int((self.folder / f"says-{number}").read_text().split()[3])


def until(condition: Callable[[], bool]) -> float:
    """Wait for it; how long it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + SECONDS, "it has not come true"
        time.sleep(0.01)
    return time.monotonic() - began


@pytest.fixture
def three(tmp_path: Path) -> Generator[Candidates]:
    candidates = Candidates(tmp_path, 3)
    yield candidates
    for number in list(candidates.processes):
        candidates.kill(number)


def test_another_candidate_leads_within_5_seconds_of_a_kill_and_the_killed_one_comes_back(three: Candidates) -> None:
    until(lambda: three.leader() is not None)
    first = three.leader()
    assert first is not None
    term = three.term(first)
    three.kill(first)
    assert until(lambda: three.leader() is not None) < 5.0
    second = three.leader()
    assert second is not None and second != first and three.term(second) > term
    before = Endpoint.read(three.folder / f"candidate-{first}.json")
    three.come_back(first)
    until(lambda: three.leader() is not None)
    assert Endpoint.read(three.folder / f"candidate-{first}.json") == before
    # It is of use: with the other follower gone it makes the majority.
    third = next(number for number in three.processes if number not in (first, second))
    three.kill(third)
    until(lambda: three.leader() is not None)


def test_without_a_majority_nobody_leads(three: Candidates) -> None:
    until(lambda: three.leader() is not None)
    leader = three.leader()
    assert leader is not None
    for number in set(three.processes) - {leader}:
        three.kill(number)
    until(lambda: (three.folder / f"says-{leader}").read_text().split()[2] == "False")


def test_a_single_candidate_leads_at_once(tmp_path: Path) -> None:
    began = time.monotonic()
    election = stand(tmp_path, "127.0.0.1", 0, 1, "one")
    assert election.is_leader and election.leader() and time.monotonic() - began < 10.0
    election.close()


def test_candidates_of_an_earlier_start_are_not_waited_for_in_vain(tmp_path: Path) -> None:
    for number in range(2):
        Endpoint("127.0.0.1", 1, "old", "earlier").announce(tmp_path / f"candidate-{number}.json")
    two = Candidates(tmp_path, 2, "later")
    until(lambda: two.leader() is not None)
    for number in range(2):
        assert Endpoint.read(tmp_path / f"candidate-{number}.json").start == "later"
        two.kill(number)


def test_who_has_no_password_can_neither_vote_nor_make_a_candidate_unpickle(three: Candidates) -> None:
    until(lambda: three.leader() is not None)
    for number, process in three.processes.items():
        endpoint = Endpoint.read(three.folder / f"candidate-{number}.json")
        listening = {c.laddr.port for c in psutil.Process(process.pid).net_connections("tcp") if c.status == "LISTEN"}
        assert listening == {endpoint.port}
        mark = three.folder / f"taken-{number}"
        for data in (_pickle(mark), b"\x00" * 64, os.urandom(4096)):
            with socket.create_connection((endpoint.host, endpoint.port)) as stranger:
                stranger.sendall(len(data).to_bytes(4, "little") + data)
                stranger.settimeout(SECONDS)
                with suppress(ConnectionResetError):
                    assert stranger.recv(64) == b""
        assert not mark.exists() and process.poll() is None
    until(lambda: three.leader() is not None)


def test_who_announces_a_message_of_more_than_a_mebibyte_is_hung_up_on_and_the_leader_stays(
    three: Candidates,
) -> None:
    until(lambda: three.leader() is not None)
    leader = three.leader()
    assert leader is not None
    endpoint = Endpoint.read(three.folder / f"candidate-{leader}.json")
    process = psutil.Process(three.processes[leader].pid)
    before, spent = process.memory_info().rss, sum(process.cpu_times()[:2])
    for announced in (2**31 - 1, 2**30, -1, 2**20 + 1):
        with socket.create_connection((endpoint.host, endpoint.port)) as stranger:
            stranger.settimeout(SECONDS)
            stranger.sendall(announced.to_bytes(4, "little", signed=True))
            with pytest.raises((ConnectionResetError, BrokenPipeError)):  # long before all of it is sent
                for _ in range(1000):
                    stranger.sendall(bytes(2**16))
    assert process.memory_info().rss < before + 2**24 and sum(process.cpu_times()[:2]) < spent + 5
    assert three.leader() == leader


def _pickle(mark: Path) -> bytes:
    """What writes `mark` when it is unpickled, as pysyncobj packs its messages."""

    class Evil:
        def __reduce__(self) -> tuple[Callable[..., object], tuple[list[str]]]:
            return subprocess.call, (["touch", str(mark)],)

    return zlib.compress(pickle.dumps(Evil()))
