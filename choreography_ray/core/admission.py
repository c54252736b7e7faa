"""May a job that runs go on? It is asked before each later stage and after each interruption [S11]."""

from __future__ import annotations

from choreography_ray.core import commands as c
from choreography_ray.core import events as e
from choreography_ray.core.instant import Instant
from choreography_ray.core.situation import Situation
from choreography_ray.model import AdmissionMoment, JobStatus

NOT_ADMITTED = "NOT_ADMITTED"
ADMISSION_UNANSWERED = "ADMISSION_UNANSWERED"
LONGEST_DELAY = 60.0


def ask_again_delay(unanswered: int) -> float:
    """Seconds until admission that did not answer so many times in a row, from 1, is asked again."""
    return float(min(2.0 ** min(unanswered - 1, 16), LONGEST_DELAY))


class Admission:
    """Asks, and asks again where nobody answered. A refusal stops the job and drains it."""

    def __init__(self, job: Situation) -> None:
        self._job = job
        self._unanswered = 0
        self.ask_again_at: float | None = None
        self.is_owed = False
        """The job was interrupted, and is not yet admitted again: its resume hook waits too."""

    def may_ask(self, time: Instant) -> bool:
        """Whether the last question that got no answer is long enough ago."""
        return self.ask_again_at is None or time.now >= self.ask_again_at

    def ask(self, moment: AdmissionMoment) -> None:
        """Ask; the answer is an event."""
        self._job.ask("admission", c.AskAdmission(moment))

    def pursue(self, time: Instant) -> None:
        """Ask after an interruption, until there is an answer or somebody stops the job."""
        if not self._job.status.is_interruptible:
            self.is_owed = False
            self.ask_again_at = None
        elif self.is_owed and not self._job.asked and self.may_ask(time):
            self.ask(AdmissionMoment.RECOVERY)

    def take(self, event: e.AdmissionAnswered, time: Instant) -> bool:
        """Take an answer. True: the job may go on."""
        job = self._job
        if not job.status.is_interruptible:
            return False  # a stop was faster: whoever resumes the job asks anew
        if event.is_allowed is None:
            # Silence is no refusal, and no permission.
            self._unanswered += 1
            self.ask_again_at = time.now + ask_again_delay(self._unanswered)
            job.turn.change(error=event.why)
            return False
        self._unanswered = 0
        self.ask_again_at = None
        self.is_owed = False
        if not event.is_allowed:
            job.start.stopped()
            job.change_status(JobStatus.STOPPED, time, why=NOT_ADMITTED)
            job.turn.change(is_stop_finalized=False, is_draining=True, error=event.why)
        return event.is_allowed
