"""How do records of an actor's process look in the files that Ray keeps of it and its log viewer shows [S16]?

A line each, of key=value: when, level, job, step and attempt or whose process it is, logger, message, traceback.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime

OURS = "choreography_ray"
"""The logger above all of ours, and of those that contexts give to bodies."""

_ABOUT_STEPS = (("job", "job_id"), ("step", "step_id"), ("attempt", "attempt"))
"""Keys, and the attributes of a record that a step's logger sets."""
_PLAIN = re.compile(r"[^\s\"'=\x00-\x1f\x7f]+")
_PASSWORD = re.compile(r"//[^/@\s]*@")


class KeyValueFormatter(logging.Formatter):
    """Formats a record as one line of key=value; a value that is not plain is quoted as in JSON."""

    def __init__(self, **about: str) -> None:
        super().__init__()
        self._about = about

    def format(self, record: logging.LogRecord) -> str:
        """The line. What stands before an @ in a URL is left out of it, whoever wrote it there."""
        line = " ".join(f"{key}={_quoted(value)}" for key, value in self._pairs(record))
        return _PASSWORD.sub("//", line)

    def _pairs(self, record: logging.LogRecord) -> Iterator[tuple[str, str]]:
        yield "at", datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        yield "level", record.levelname
        known = {key: str(getattr(record, name)) for key, name in _ABOUT_STEPS if hasattr(record, name)}
        yield from (self._about | known).items()
        yield "logger", record.name.removeprefix(f"{OURS}.")
        yield "message", record.getMessage()
        if record.exc_info:
            yield "error", self.formatException(record.exc_info)


def write_records(**about: str) -> None:
    """Write records of our loggers, INFO and above, to this process's standard error, which Ray keeps in a file.

    `about`, not empty, says whose process it is. User code that is loaded later may set another level.
    """
    logger = logging.getLogger(OURS)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(KeyValueFormatter(**about))
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False


def _quoted(value: str) -> str:
    return value if _PLAIN.fullmatch(value) else json.dumps(value, ensure_ascii=False)
