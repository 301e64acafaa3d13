"""Starting the vLLM server as a process, and what it said when it is gone."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from transformers import PreTrainedConfig, PreTrainedTokenizerFast

LAST_LINES = 20
LOOK_SECONDS = 0.1
END_SECONDS = 10.0


class Process:
    """A server that this process has started; it ends with it."""

    def __init__(
        self,
        config: PreTrainedConfig,
        tokenizer: PreTrainedTokenizerFast,
        announce: Path,
        log: Path,
        *,
        slots: int,
        memory_share: float,
        seconds: float,
    ) -> None:
        """Returns when the server listens, which `announce` then tells. What it prints goes to `log`.

        Raises RuntimeError, with its last lines, when it ends before, or does not listen after so many seconds.
        """
        announce.unlink(missing_ok=True)
        self._folder = tempfile.TemporaryDirectory()
        config.save_pretrained(self._folder.name)
        tokenizer.save_pretrained(self._folder.name)
        values = {
            "--model": self._folder.name,
            "--announce": announce,
            "--slots": slots,
            "--memory-share": memory_share,
            "--parent": os.getpid(),
        }
        arguments = [str(word) for pair in values.items() for word in pair]
        with log.open("wb") as file:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "stages.rollout.vllm.server", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        end = time.monotonic() + seconds
        while not announce.exists():
            if self._popen.poll() is not None or time.monotonic() > end:
                self.stop()
                raise RuntimeError(f"the vLLM server did not start\n{last_lines(log)}")
            time.sleep(LOOK_SECONDS)

    @property
    def pid(self) -> int:
        """Of the server."""
        return self._popen.pid

    def stop(self) -> None:
        """End it."""
        self._popen.terminate()
        try:
            self._popen.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        self._folder.cleanup()


def last_lines(log: Path) -> str:
    """What a server has printed last."""
    lines = log.read_text(errors="replace").splitlines()[-LAST_LINES:] if log.exists() else []
    return "\n".join([f"last lines of {log}:", *lines])
