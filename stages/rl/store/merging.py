"""Trained segments become few: one a commit of the journal would be tens of thousands of files in a long run.

Many small ones are copied into one larger, immutable like them, which is renamed when it is whole; then they go. A kill
in between leaves groups in two files, which are the same bytes: whoever looks for one takes either.
"""

import threading
from collections.abc import Callable
from pathlib import Path

from checkpoints.commit import ASIDE, sync
from data.segments import read_groups, read_origins, write_segment
from stages.rl.store.journal import SMALL_BYTES, Journal

FILES = 64
"""Small ones, until they are merged."""
MOST_BYTES = 2 * SMALL_BYTES
"""Of one merge, in memory; two small ones fit always."""


class Merging:
    """A thread of a shard that merges what its journal has closed."""

    def __init__(self, journal: Journal, current: Callable[[], bool]) -> None:
        """`current` says whether this process is still the shard; if not, it touches nothing."""
        self._journal, self._current = journal, current
        self._asked = threading.Event()
        threading.Thread(target=self._run, name="merging", daemon=True).start()

    def ask(self) -> None:
        """Something was trained."""
        self._asked.set()

    def _run(self) -> None:
        while True:
            self._asked.wait()
            self._asked.clear()
            try:
                while merge(self._journal, self._current):
                    pass
            except OSError as error:  # nothing is lost: what was to be merged is there as before
                print(f"trained segments are not merged: {error}", flush=True)


def merge(journal: Journal, current: Callable[[], bool]) -> bool:
    """Merge the first small segments; False where there are too few. OSError leaves all as it was."""
    load, closed = journal.closed()
    if len(closed) < FILES:
        return False
    parts, size = list[Path](), 0
    for path in closed:
        size += path.stat().st_size
        if size > MOST_BYTES:
            break
        parts.append(path)
    entries = [read_origins(path) for path in parts]
    groups = [group for path, some in zip(parts, entries, strict=True) for group in read_groups(path, range(len(some)))]
    origins = [entry for some in entries for entry in some]
    merged = journal.path([entry.position for entry in origins])
    aside = merged.with_name(merged.name + ASIDE)
    try:
        write_segment(aside, origins, groups, journal.attributes)
        if not current():
            return False
        aside.replace(merged)
        sync(journal.folder)
    finally:
        aside.unlink(missing_ok=True)
    return current() and journal.replace(parts, merged, load)
