"""Whether the file system of the run folder does what `checkpoints.commit` and `slurm.lock` rely on."""

import fcntl
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from slurm.health.finding import Finding, within

LIMIT_SECONDS = 20.0
"""For each check. A healthy file system needs well under a second."""
Check = Callable[[Path, str], list[Finding]]
RENAMES = 50
FSYNCS = 5
SLOW_FSYNC_MS = 1000.0
"""A committed step fsyncs some ten small files and their folders."""
FREE_BYTES = {"run folder": 1 << 30, "/tmp": 16 << 20, "/dev/shm": 16 << 20}
"""Least free space. The demo needs a tenth of it. The other two hold small files of torch and gloo, and a container has
64 MiB of /dev/shm."""
FREE_INODES = 1000
LOCKS = "ask the administrator to mount it with locks (Lustre: -o flock; NFS: without nolock and local_lock)"
CLOCKS = "ask the administrator to set the clocks by NTP"
ANOTHER = "work in a folder of another file system"


def check_files(folder: Path, node: str) -> list[Finding]:
    """All checks of a shared folder that one node can do alone. They work in a folder of their own, and remove it."""
    checks: list[tuple[str, Check, str]] = [
        ("rename", check_rename, ANOTHER),
        ("fsync", check_fsync, ANOTHER),
        ("locks", check_locks, LOCKS),
        ("file times", check_times, CLOCKS),
    ]
    prefix = f".doctor-{node}-{os.getpid()}-"  # of this process: others may examine the same node
    found: list[Finding] = []
    for name, check, way_out in checks:
        find = lambda check=check: in_own_folder(check, folder, node, prefix)  # noqa: E731
        found += within(LIMIT_SECONDS, name, node, find, way_out)
    return found + within(LIMIT_SECONDS, "remove", node, lambda: _remove(folder, prefix), ANOTHER)


def in_own_folder(check: Check, folder: Path, node: str, prefix: str = ".doctor-") -> list[Finding]:
    """Run a check in a new folder, and remove it."""
    with tempfile.TemporaryDirectory(prefix=prefix, dir=folder) as own:
        return check(Path(own), node)


def _remove(folder: Path, prefix: str) -> list[Finding]:
    """What a check that was killed has left."""
    for path in folder.glob(f"{prefix}*"):
        shutil.rmtree(path)
    return []


def check_rename(folder: Path, node: str) -> list[Finding]:
    """A file that is replaced is at every moment the old or the new one, whole."""
    path, size, torn = folder / "file", 65536, list[str]()
    path.write_bytes(b"0" * size)
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            try:
                data = path.read_bytes()
            except OSError as error:
                torn.append(f"the name was gone: {error.strerror}")
                return
            if len(data) != size or len(set(data)) != 1:
                torn.append(f"a reader saw {len(data)} bytes of {len(set(data))} versions")
                return

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(RENAMES):
        aside = folder / "aside"
        aside.write_bytes(bytes([48 + number % 10]) * size)
        aside.replace(path)
    done.set()
    reader.join()
    last = path.read_bytes()[:1] == bytes([48 + (RENAMES - 1) % 10])
    if torn or not last:
        return [Finding("rename", node, "bad", torn[0] if torn else "the old file came back", ANOTHER)]
    return [Finding("rename", node, "ok", f"atomic in {RENAMES} replacements under a reader")]


def check_fsync(folder: Path, node: str) -> list[Finding]:
    """Milliseconds of a small file's fsync and of its folder's, as each commit does them."""
    times: list[float] = []
    for number in range(FSYNCS):
        begin = time.perf_counter()
        path = folder / str(number)
        path.write_bytes(os.urandom(4096))
        for target in (path, folder):
            descriptor = os.open(target, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        times.append(1000 * (time.perf_counter() - begin))
    median = statistics.median(times)
    measured = f"median {median:.1f} ms of {FSYNCS}, limit {SLOW_FSYNC_MS:g} ms"
    if median > SLOW_FSYNC_MS:
        return [Finding("fsync", node, "bad", measured, "ask the administrator why a small write takes so long")]
    return [Finding("fsync", node, "ok", measured)]


def check_locks(folder: Path, node: str) -> list[Finding]:
    """A lock of one process keeps another one out, and ends with its holder."""
    path = folder / "lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    if not _refused_elsewhere(path):
        return [Finding("locks", node, "bad", "two processes held one lock", LOCKS)]
    os.close(descriptor)
    if _refused_elsewhere(path):
        return [Finding("locks", node, "bad", "a lock outlived its holder", LOCKS)]
    return [Finding("locks", node, "ok", "flock excludes between processes")]


def _refused_elsewhere(path: Path) -> bool:
    """Whether another process does not get the lock. NFS gives a second one to the same process."""
    child = os.fork()
    if child == 0:
        os._exit(0 if is_locked(path) else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def is_locked(path: Path) -> bool:
    """Whether another process holds the lock `path`, here or on another node."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
        return True
    finally:
        os.close(descriptor)


def check_times(folder: Path, node: str) -> list[Finding]:
    """The file server's clock against this node's, as the time of a new file shows it."""
    path = folder / "time"
    before = time.time()
    path.write_bytes(b"x")
    after = time.time()
    written = path.stat().st_mtime_ns
    grain = 1.0 if written % 10**9 == 0 else TICK_SECONDS
    skew = written / 1e9 + grain / 2 - (before + after) / 2
    return [judge_clock("file times", node, skew, (after - before + grain) / 2)]


TICK_SECONDS = 0.01
"""File times advance with the kernel's tick, or by whole seconds on old file systems."""
CLOCK_SECONDS = 1.0
"""Runs and attempts are ordered by file times, and the end of the allocation is compared with the node's clock."""


def judge_clock(check: str, node: str, skew: float, uncertainty: float) -> Finding:
    """`skew` seconds, known to within `uncertainty`: beyond the limit, within it, or not known well enough."""
    measured = f"{skew:+.4f} s, known to {uncertainty:.4f} s, limit {CLOCK_SECONDS:g} s"
    if abs(skew) - uncertainty > CLOCK_SECONDS:
        return Finding(check, node, "bad", measured, CLOCKS)
    return Finding(check, node, "ok" if abs(skew) + uncertainty <= CLOCK_SECONDS else "unknown", measured)


def check_space(folder: Path | None, node: str) -> list[Finding]:
    """Free space and free inodes of the run folder, where one is given, and of this node's /tmp and /dev/shm."""
    places = {"run folder": folder} if folder else {}
    found: list[Finding] = []
    for name, place in {**places, "/tmp": Path("/tmp"), "/dev/shm": Path("/dev/shm")}.items():
        find = lambda name=name, place=place: [_space(name, place, node)]  # noqa: E731
        found += within(LIMIT_SECONDS, f"space of {name}", node, find)
    return found


def _space(name: str, place: Path, node: str) -> Finding:
    check, least = f"space of {name}", FREE_BYTES[name]
    if not place.is_dir():
        return Finding(check, node, "bad", f"there is no folder {place}", "ask the administrator")
    disk = os.statvfs(place)
    free = disk.f_bavail * disk.f_frsize
    inodes = f"{disk.f_favail:,} inodes free" if disk.f_files else "inodes are not counted"
    measured = f"{free >> 20:,} MiB and {inodes}; at least {least >> 20:,} and {FREE_INODES:,}"
    if free < least or (disk.f_files and disk.f_favail < FREE_INODES):
        return Finding(check, node, "bad", measured, f"make room in {place}")
    with tempfile.NamedTemporaryFile(prefix=".doctor-", dir=place) as stream:  # a quota refuses here
        stream.write(bytes(1 << 20))
        stream.flush()
        os.fsync(stream.fileno())
    return Finding(check, node, "ok", measured)
