"""What the modules of the five packages log, as lines of the job's log."""

import logging

from slurm.fingerprint import PACKAGES


class Lines(logging.Handler):
    """Prints a record as other lines of the job are printed: a warning says so, a note stands as it is."""

    def emit(self, record: logging.LogRecord) -> None:
        """On the standard output of now."""
        mark = f"{record.levelname.lower()}: " if record.levelno > logging.INFO else ""
        print(f"{mark}{self.format(record)}", flush=True)


def show_log() -> None:
    """Print what our modules log, from INFO on. Others' loggers stay as they are: from WARNING on, or as they like."""
    for name in PACKAGES:
        logger = logging.getLogger(name)
        logger.handlers = [Lines()]
        logger.setLevel(logging.INFO)
