"""How does a job look in a notebook's cell while it runs? One output that replaces itself: no flood, no widgets.

It is the plain protocol of Jupyter, a display with an id, which JupyterLab, Notebook, VS Code, nbclient and papermill
know; a saved notebook keeps the last picture.
"""

from __future__ import annotations

import importlib
import logging
import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from choreography_ray.display.html import RED, Content, muted, status_mark, tag, to_html
from choreography_ray.display.live import SHOWN_FAILURES, Rate
from choreography_ray.display.notebook import VIEWS, failed_step_line, stage_bars
from choreography_ray.display.words import done_of, elapsed, format_duration, troubles
from choreography_ray.model import JobRecord, StepRecord

log = logging.getLogger(__name__)

Publish = Callable[[dict[str, str]], None]
"""Takes what a cell is to show now, by media type."""


def kernel_shell() -> Any:
    """IPython's shell where a notebook can show HTML; None in a script, a plain Python and IPython in a terminal."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return shell if hasattr(shell, "kernel") else None


def register_views() -> None:
    """Have a notebook show records as pages. Again has no effect, nor outside of a notebook."""
    shell = kernel_shell()
    if shell is not None:
        for kind, view in VIEWS.items():
            shell.display_formatter.formatters["text/html"].for_type(kind, view)


def publisher() -> Publish:
    """Shows something in the cell that runs now, and from then on replaces it."""
    display: Any = importlib.import_module("IPython.display")
    shown: Any = None

    def publish(page: dict[str, str]) -> None:
        nonlocal shown
        if shown is None:
            shown = display.display(page, raw=True, display_id=True)
        else:
            shown.update(page, raw=True)

    return publish


class CellProgress:
    """Shows a job in a cell while it runs: feed it the latest record. Trouble with showing never ends the wait."""

    def __init__(self, publish: Publish, clock: Callable[[], float] = time.monotonic) -> None:
        self._publish = publish
        self._rate = Rate(clock)
        self._record: JobRecord | None = None
        self._failures: dict[str, StepRecord] = {}
        self._last: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._record is not None:
            self._show(self._record, muted("this is not followed any more"))

    def update(self, record: JobRecord, failures: Sequence[StepRecord] = ()) -> None:
        """Show `record`, and those of `failures` that were not told before."""
        self._rate.observe(done_of(record.progress))
        for step in failures:
            if self.wants_failures:
                self._failures.setdefault(step.step_id, step)
        self._record = record
        self._show(record)

    @property
    def failures_told(self) -> int:
        """How many failures were told one by one."""
        return len(self._failures)

    @property
    def wants_failures(self) -> bool:
        """False once enough were told: the caller may save itself reading them."""
        return self.failures_told < SHOWN_FAILURES

    def _show(self, record: JobRecord, *remarks: Content) -> None:
        parts: list[Content] = [self._headline(record), stage_bars(record)]
        failures = self._failures.values()
        parts += [tag("div", f"failed: {failed_step_line(step)}", style=f"color:{RED}") for step in failures]
        if not self.wants_failures:
            parts.append(muted("further failures are only counted"))
        page = {"text/html": to_html(*parts, *remarks), "text/plain": self._pace(record)}
        if page == self._last:
            return
        self._last = page
        try:
            self._publish(page)
        except Exception as error:  # noqa: BLE001 - a cell that cannot be written is no reason to stop waiting
            log.info("the progress of job %r cannot be shown: %s", record.job_id, error)

    def _headline(self, record: JobRecord) -> Content:
        parts: list[Content] = [status_mark(record.status), f"  {self._pace(record)}"]
        if record.error:
            parts.append(tag("div", record.error, style=f"color:{RED}"))
        return tag("div", tag("b", f"{record.type_name} {record.job_id}"), "  ", *parts)

    def _pace(self, record: JobRecord) -> str:
        counts = record.progress
        told = f"{done_of(counts)}/{counts.total} steps{troubles(counts)}"
        if not record.status.is_interruptible:
            return f"{told} in {format_duration(elapsed(record))}"
        left = self._rate.seconds_for(counts.total - done_of(counts))
        if left is None:
            return told
        return f"{told}, {self._rate.per_second:.3g}/s, about {format_duration(left)} left"
