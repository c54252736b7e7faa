"""What stands for the hooks of a job whose code is loaded no more: nothing is called, everything is recorded [S10]."""

from __future__ import annotations

from choreography_ray.core.commands import ReportedOutcome
from choreography_ray.core.events import (
    AdmissionAnswered,
    CompletionHookRan,
    HooksRan,
    ResumeChecked,
    ResumeHookRan,
    RetryChecked,
    StoppedHookRan,
    Verdict,
)
from choreography_ray.model import AdmissionMoment, StageFailureBehavior
from choreography_ray.records import Payload


class SilentHooks:
    """Answers as `Hooks` does, without the job's code: outcomes are final, nothing goes on, the state stays."""

    async def run_group(self, ticket: int, items: tuple[ReportedOutcome, ...]) -> HooksRan:
        """Every outcome is final."""
        return HooksRan(ticket, tuple(Verdict() for _ in items))

    async def failure_behavior(self, stage: int) -> StageFailureBehavior:
        """No later stage begins."""
        return StageFailureBehavior.STOP_JOB

    async def resume(self, initialization_may_be_incomplete: bool) -> ResumeHookRan:
        """Never asked: the job does not go on."""
        return ResumeHookRan(error="the job's code is not loaded any more")

    async def check_resume(self) -> ResumeChecked:
        """It cannot be resumed."""
        return ResumeChecked("JOB_CANNOT_BE_RESUMED")

    async def check_retry(self) -> RetryChecked:
        """Nor can its failed steps be run again."""
        return RetryChecked(is_allowed=False)

    async def admit(self, moment: AdmissionMoment, stage: int | None) -> AdmissionAnswered:
        """Nothing of it may begin."""
        return AdmissionAnswered(False, moment)

    async def stopped(self) -> StoppedHookRan:
        """Nobody is told."""
        return StoppedHookRan()

    async def complete(self) -> CompletionHookRan:
        """Nobody is told."""
        return CompletionHookRan()

    async def cancelled_value(self, ordinal: int) -> Payload:
        """There is nobody to ask."""
        return None
