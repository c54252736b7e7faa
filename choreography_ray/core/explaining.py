"""For what do the steps of a job wait? By reason, with numbers and a few examples [S14.4]."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice

from choreography_ray.core.admission import Admission
from choreography_ray.core.hosts import HostPhase, HostView
from choreography_ray.core.instant import Instant
from choreography_ray.core.situation import Situation
from choreography_ray.core.transitions import FINAL_CODES
from choreography_ray.model import JobStatus, WaitReason
from choreography_ray.records import JobDocument, LedgerSegment, StepCode, StepKind

EXAMPLES = 3
LOOKED_AT = 20_000
"""Steps that are looked at, at most, to find an example: the job's own work must not wait for it."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Steps that wait for the same: how many, the ordinals of some, and when it ends by itself, where that is known."""

    reason: WaitReason
    steps: int
    told: str
    ordinals: tuple[int, ...] = ()
    due: datetime | None = None


@dataclass(frozen=True, slots=True)
class Explained:
    """What a job's actor answers. `phase` is empty where `waits` tell of every step that is not final."""

    running: int = 0
    waits: tuple[Waits, ...] = ()
    phase: str = ""
    trouble: str = ""
    """The store's last error while it does not answer."""
    status: JobStatus | None = None
    """The job's, as its actor knows it."""


_NOT_DUE = "their last attempt failed, and the next is not due yet"
_ENDED = "their outcome is there, and waits for the job's hooks or is before them"
_STOPPED = "they are stopped: a resume of the job starts them"


def explain(job: Situation, admission: Admission, time: Instant) -> Explained:
    """Every step that has begun counts as running; every other that is not final waits for something."""
    running, waits = _explain_hosts(job)
    asked_again = _asked_again(admission, time)
    waits += [
        *_startable(job, admission, asked_again, time.now),
        *_retries(job, time),
        *_later_stages(job, admission, asked_again),
    ]
    undecided = job.inbox.undecided()
    waits.append(Waits(WaitReason.OUTCOME, len(undecided), _ENDED, tuple(undecided[:EXAMPLES])))
    lost = job.inbox.active - running - sum(wait.steps for wait in waits if wait.reason in _HOST_WAITS)
    waits.append(Waits(WaitReason.HOST, max(0, lost), "their host is gone, and what it left is being settled"))
    if stopped := sum(job.ledger.count(stage, StepCode.STOPPED) for stage in job.ledger.stages):
        examples = tuple(islice(job.ledger.find(StepCode.STOPPED), EXAMPLES))
        waits.append(Waits(WaitReason.STOPPED, stopped, _STOPPED, examples))
    if job.document.mark:
        # Not taken up yet: what the mark prepared, or still will, is only in the ledger.
        rest = job.ledger.open_steps() - running - sum(wait.steps for wait in waits)
        waits.append(Waits(WaitReason.HOOK, max(0, rest), _under_mark(job.document.mark)))
    return Explained(running, tuple(wait for wait in waits if wait.steps))


def _under_mark(mark: str) -> str:
    return f"a {mark} of the job is under way"


def _explain_hosts(job: Situation) -> tuple[int, list[Waits]]:
    """Steps that were given to a host."""
    running = 0
    found: dict[WaitReason, list[int]] = {}
    for view in job.hosts.all():
        if view.group is None:
            continue
        left = sorted(job.inbox.left(view.group.run))
        if view.phase is HostPhase.LIVE:
            running += min(view.group.width, len(left))
            found.setdefault(WaitReason.GROUP, []).extend(left[view.group.width :])
        else:
            found.setdefault(_reason_of(view), []).extend(left)
    return running, [
        Waits(reason, len(steps), _HOST_WAITS[reason], tuple(steps[:EXAMPLES])) for reason, steps in found.items()
    ]


_HOST_WAITS = {
    WaitReason.GROUP: "they were given to a host together with others, and it performs one after the other",
    WaitReason.RESOURCES: "no node has free what their actors ask for in ray_options",
    WaitReason.HOST: "their actors are being started, or looked for after a restart of the job's own",
}


def _reason_of(view: HostView) -> WaitReason:
    return WaitReason.RESOURCES if view.is_waiting else WaitReason.HOST


def _startable(job: Situation, admission: Admission, asked_again: datetime | None, now: float) -> Iterator[Waits]:
    """Steps that nothing but the job's bounds, or a pause of it, keeps from starting."""
    steps = job.queue.waiting
    examples = tuple(islice(job.queue.next_ordinals(), EXAMPLES))
    if not steps:
        return
    if admission.is_owed:
        yield Waits(
            WaitReason.ADMISSION, steps, "admission to go on was asked for, and not given yet", examples, asked_again
        )
        return
    if (pause := _pause(job)) is not None:
        yield Waits(pause[0], steps, pause[1], examples)
        return
    room = steps if job.rules.window is None else max(0, max(1, job.rules.window) - job.inbox.active)
    inside, starting, most = min(steps, room), job.hosts.starting, job.document.options.max_concurrent_step_starts
    if inside and starting >= most:
        told = f"{starting} actors are being started, and max_concurrent_step_starts is {most}"
        yield Waits(WaitReason.STARTS, inside, told, examples)
    elif inside and job.waits_for_warm_until(now) is not None:
        yield Waits(WaitReason.HOST, inside, "one of the warm actors is about to be free", examples)
    elif inside:
        used = sum(held.width for held in job.slots.held)
        told = f"no slot is free for them: the job holds {used}, and asks the throttle for {job.slots.wanted} more"
        if job.slots.is_unanswered:
            told += "; the throttle has not answered its last questions"
        yield Waits(WaitReason.SLOT, inside, told, examples)
    if outside := steps - inside:
        told = f"{job.inbox.active} steps of the job are active, and its window is {max(1, job.rules.window or 1)}"
        yield Waits(WaitReason.WINDOW, outside, told, () if inside else examples)


def _pause(job: Situation) -> tuple[WaitReason, str] | None:
    """Why the job starts nothing at all now; None: it does."""
    if job.status in (JobStatus.STOPPED, JobStatus.REMOVING):
        return WaitReason.STOP, f"the job is {job.status}, which is being finished"
    if job.document.mark:
        return WaitReason.HOOK, _under_mark(job.document.mark)
    if job.owes_resume:
        error = f"; it failed: {job.document.error}" if job.document.error else ""
        return WaitReason.HOOK, f"on_before_resuming_job_steps must succeed before anything starts{error}"
    return None


def _retries(job: Situation, time: Instant) -> Iterator[Waits]:
    later = job.queue.later()
    if later:
        due = time.at + timedelta(seconds=max(0.0, later[0][0] - time.now))
        yield Waits(WaitReason.RETRY, len(later), _NOT_DUE, tuple(ordinal for _, ordinal in later[:EXAMPLES]), due)


def _asked_again(admission: Admission, time: Instant) -> datetime | None:
    again = admission.ask_again_at
    return None if again is None else time.at + timedelta(seconds=max(0.0, again - time.now))


def _later_stages(job: Situation, admission: Admission, asked_again: datetime | None) -> Iterator[Waits]:
    reached, ledger = job.document.stage, job.ledger
    later = [stage for stage in ledger.stages if reached is None or stage > reached]
    for place, stage in enumerate(later):
        steps = ledger.count(stage, StepCode.PREPARED)
        if not steps:
            continue
        examples = tuple(islice(_prepared(job, stage), EXAMPLES))
        is_asked = job.asked == "admission" or asked_again is not None
        if place == 0 and is_asked and not admission.is_owed:
            told = f"admission of stage {stage} was asked for, and not given yet"
            yield Waits(WaitReason.ADMISSION, steps, told, examples, asked_again)
        elif reached is None:
            yield Waits(WaitReason.HOOK, steps, "the job's steps are about to be started", examples)
        else:
            left = ledger.open_steps(reached)
            told = f"stage {stage} waits for the {left} steps of stage {reached} that have not ended"
            if not left and job.asked:
                told = f"stage {stage} waits for the job's code, which was asked what comes after stage {reached}"
            yield Waits(WaitReason.STAGE, steps, told, examples)


def _prepared(job: Situation, stage: int) -> Iterator[int]:
    for ordinal in islice(job.ledger.find(StepCode.PREPARED), LOOKED_AT):
        if job.ledger.stage(ordinal) == stage:
            yield ordinal


# The same from the store alone, where no actor of the job answers.


def explain_stored(
    document: JobDocument, kinds: Sequence[StepKind], segments: Sequence[LedgerSegment], due: datetime | None
) -> Explained:
    """What the records tell: less than the actor knows. `due` is when the first of the waiting retries is due."""
    assert document.plan is not None
    tally: Counter[tuple[int, int]] = Counter()
    examples: dict[tuple[int, int], list[int]] = {}
    for segment in segments:
        of_kind = memoryview(segment.kinds).cast("H")
        counts = Counter(zip(of_kind, segment.codes, strict=True))
        for (kind, code), count in counts.items():
            place = kinds[kind].stage, code
            tally[place] += count
            some = examples.setdefault(place, [])
            if len(some) < EXAMPLES and code not in FINAL_CODES:
                begin = segment.index * document.plan.segment_steps
                pairs = enumerate(zip(of_kind, segment.codes, strict=True), begin)
                here = (ordinal for ordinal, (k, c) in pairs if kinds[k].stage == place[0] and c == code)
                some.extend(islice(here, EXAMPLES - len(some)))
    waits = [
        _stored_wait(document, stage, StepCode(code), count, tuple(examples[stage, code]), due)
        for (stage, code), count in sorted(tally.items())
        if code not in FINAL_CODES
    ]
    return Explained(0, tuple(waits))


def _stored_wait(
    document: JobDocument, stage: int, code: StepCode, steps: int, ordinals: tuple[int, ...], due: datetime | None
) -> Waits:
    reached = document.stage
    match code:
        case StepCode.STOPPED:
            return Waits(WaitReason.STOPPED, steps, _STOPPED, ordinals)
        case StepCode.AWAITING_RETRY:
            return Waits(WaitReason.RETRY, steps, _NOT_DUE, ordinals, due)
        case StepCode.SCHEDULED:
            told = "they were given to a host; whether they have begun only the job's actor knows"
            return Waits(WaitReason.HOST, steps, told, ordinals)
        case _ if reached is not None and stage > reached:
            return Waits(WaitReason.STAGE, steps, f"stage {stage} waits for stage {reached}", ordinals)
        case _ if document.status is JobStatus.STOPPED:
            return Waits(WaitReason.STOPPED, steps, _STOPPED, ordinals)
        case _:
            told = "no actor of the job answers: the next connect to its cluster brings the job back"
            return Waits(WaitReason.NOBODY, steps, told, ordinals)
