"""Stories of admission: asked before stages and after interruptions; refused, silent, and allowed at last [S11]."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from choreography_ray.core import admission
from choreography_ray.core.instant import Instant
from choreography_ray.engine.admission import ask_to_start
from choreography_ray.engine.rest import RequestKind
from choreography_ray.model import AdmissionMoment, AdmissionQuestion, JobStatus
from choreography_ray.options import JobsOptions
from choreography_ray.records import StepCode
from choreography_ray.testing.asking import ask, rest
from choreography_ray.testing.faults import Cut, Fault
from choreography_ray.testing.job_actor import SimJob
from choreography_ray.testing.loop import run
from choreography_ray.testing.user_code import SimUserCode, call_inline
from tests.simulation.check import check_end, check_world
from tests.simulation.jobs import Batch, KeptPieces, Piece, Work, batch
from tests.simulation.world import World

PIECES = [Piece(key=f"{stage}/{i}", stage=stage, seconds=1.0, shared=i % 2) for stage in (0, 1, 2) for i in range(3)]
Answer = Callable[[AdmissionMoment], Any]


class Asked(KeptPieces):
    """Its admission answers as a story says, and notes when it was asked."""

    answers: ClassVar[Answer]
    asked: ClassVar[list[tuple[float, AdmissionMoment]]] = []

    async def may_run(self, moment: AdmissionMoment) -> bool:  # type: ignore[override]
        self.asked.append((Work.world.now, moment))
        answer = Asked.answers(moment)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, float):
            await asyncio.sleep(answer)
        return answer  # type: ignore[no-any-return]


class AskedInBackground(Asked):
    """The same, started in the background."""

    start_steps_in_background = True

    async def prepare_steps(self, request: Batch):  # type: ignore[no-untyped-def, override]
        await asyncio.sleep(1.0)
        return list(super().prepare_steps(request))


def moments() -> list[AdmissionMoment]:
    return [moment for _, moment in Asked.asked]


async def start(world: World, answers: Answer, job_class: type[Asked] = Asked, **options: Any) -> SimJob:
    Work.world = world
    Asked.answers = staticmethod(answers)  # type: ignore[assignment]
    Asked.asked.clear()
    return await world.start(job_class, batch(PIECES), options=JobsOptions(**options))


def allowed(moment: AdmissionMoment) -> bool:
    return True


def refused_at(refused: AdmissionMoment) -> Answer:
    return lambda moment: moment is not refused


def unanswered(refused: AdmissionMoment, times: int, answer: Any) -> Answer:
    """So many times no answer, then permission."""
    left = [times]

    def answers(moment: AdmissionMoment) -> Any:
        if moment is not refused or not left[0]:
            return True
        left[0] -= 1
        return answer

    return answers


async def check_not_admitted(world: World, job: SimJob) -> None:
    document = await world.document()
    assert document.status is JobStatus.STOPPED
    assert document.history[-1].why == "NOT_ADMITTED"
    assert "may_run refused" in document.error
    assert document.is_stop_finalized
    assert not +world.running
    assert StepCode.SCHEDULED not in world.codes(job.job_id)


def test_each_later_stage_is_asked_for() -> None:
    async def story() -> None:
        world = World()
        job = await start(world, allowed)
        assert await job.ended is JobStatus.COMPLETED_SUCCESSFULLY
        assert moments() == [AdmissionMoment.STAGE] * 2
        await check_end(world)

    run(story())


def test_a_stage_that_is_refused_stops_the_job_and_a_resume_asks_again() -> None:
    async def story() -> None:
        world = World()
        job = await start(world, refused_at(AdmissionMoment.STAGE))
        assert await rest(job) is JobStatus.STOPPED
        await check_not_admitted(world, job)
        assert (await world.document()).counts.succeeded == 3
        Asked.answers = staticmethod(refused_at(AdmissionMoment.RESUME))  # type: ignore[assignment]
        before = await world.document()
        assert await ask(job, RequestKind.RESUME) == "NOT_ADMITTED"
        after = await world.document()
        assert (after.status, after.history, after.error) == (before.status, before.history, before.error)
        Asked.answers = staticmethod(unanswered(AdmissionMoment.RESUME, 1, ValueError("away")))  # type: ignore[assignment]
        assert await ask(job, RequestKind.RESUME) == "ADMISSION_UNANSWERED"
        assert (await world.document()).status is JobStatus.STOPPED
        assert await ask(job, RequestKind.RESUME) == "RESUMED"
        assert await rest(job) is JobStatus.COMPLETED_SUCCESSFULLY
        await check_end(world)

    run(story())


@pytest.mark.parametrize("answer", [ValueError("away"), "maybe", None, 1000.0], ids=["raises", "odd", "none", "silent"])
def test_a_stage_without_an_answer_is_asked_for_again_and_again(answer: Any) -> None:
    """After 1 s, then twice as long each time, at most 60 s; the job says why it waits."""

    async def story() -> None:
        world = World()
        job = await start(world, unanswered(AdmissionMoment.STAGE, 8, answer))
        await asyncio.sleep(60.0)
        document = await world.document()
        assert document.status is JobStatus.RUNNING
        assert "admission" in document.error
        assert await job.ended is JobStatus.COMPLETED_SUCCESSFULLY
        times = [at for at, _ in Asked.asked][:9]
        took = 10.0 if answer == 1000.0 else 0.0
        gaps = [b - a - took for a, b in itertools.pairwise(times)]
        assert gaps == pytest.approx([1, 2, 4, 8, 16, 32, 60, 60], abs=0.4)
        await check_end(world)

    run(story())


def test_a_recovery_is_asked_for_before_anything_starts() -> None:
    """Outcomes are taken meanwhile; neither hook nor step begins before it is allowed."""

    async def story() -> None:
        world = World()
        job = await start(world, unanswered(AdmissionMoment.RECOVERY, 3, ValueError("away")))
        await asyncio.sleep(0.8)
        job.die()
        begun = len(world.marks)
        await asyncio.sleep(5.0)
        assert not [mark for mark in world.marks[begun:] if mark[1] == "begin"]
        assert await job.ended is JobStatus.COMPLETED_SUCCESSFULLY
        assert moments()[:4] == [AdmissionMoment.RECOVERY] * 4
        await check_end(world)

    run(story())


@pytest.mark.parametrize("at", [0.0, 0.005, 0.03, 0.2, 0.7, 1.5, 3.0])
def test_a_recovery_that_is_refused_stops_and_drains_the_job(at: float) -> None:
    """Wherever it was interrupted: before its plan, while it was prepared, or while its steps ran."""

    async def story() -> None:
        world = World()
        job = await start(world, refused_at(AdmissionMoment.RECOVERY))
        await asyncio.sleep(at)
        job.die()
        status = await rest(job)
        if status is JobStatus.FAILED:
            return  # its plan was not saved, or nobody had taken it before
        if AdmissionMoment.RECOVERY in moments():
            await check_not_admitted(world, job)
            Asked.answers = staticmethod(allowed)  # type: ignore[assignment]
            if (await world.document()).plan is None:
                return
            assert await ask(job, RequestKind.RESUME) == "RESUMED"
            assert moments().count(AdmissionMoment.RESUME) == 1
            status = await rest(job)
        assert status is JobStatus.COMPLETED_SUCCESSFULLY
        await check_end(world)

    run(story())


@pytest.mark.parametrize("answer", [False, ValueError("away")])
def test_a_start_in_the_background_is_asked_for_again_before_it_plans_again(answer: Any) -> None:
    async def story() -> None:
        world = World()
        job = await start(world, unanswered(AdmissionMoment.RECOVERY, 2, answer), AskedInBackground)
        await asyncio.sleep(0.5)
        job.die()
        status = await rest(job)
        if answer is False:
            assert status is JobStatus.STOPPED
            document = await world.document()
            assert document.plan is None
            assert document.history[-1].why == "NOT_ADMITTED"
            assert "refused" in document.error
        else:
            assert status is JobStatus.COMPLETED_SUCCESSFULLY
            assert moments()[:3] == [AdmissionMoment.RECOVERY] * 3
            await check_end(world)

    run(story())


@pytest.mark.parametrize("moment", [AdmissionMoment.STAGE, AdmissionMoment.RECOVERY])
def test_a_job_that_waits_for_admission_can_be_stopped_and_removed(moment: AdmissionMoment) -> None:
    async def story() -> None:
        world = World()
        job = await start(world, unanswered(moment, 10**6, ValueError("away")))
        await asyncio.sleep(0.8)
        if moment is AdmissionMoment.RECOVERY:
            job.die()
        await asyncio.sleep(20.0)
        assert await ask(job, RequestKind.STOP) == "STOPPED"
        assert await rest(job) is JobStatus.STOPPED
        assert (await world.document()).history[-1].why == "stopped"
        turns = len(Asked.asked)
        await asyncio.sleep(200.0)
        assert len(Asked.asked) == turns, "it is asked although the job is stopped"
        assert await ask(job, RequestKind.REMOVE) == "REMOVED"
        await job.ended
        await world.settle()
        check_world(world)

    run(story())


async def refused_and_resumed(world: World) -> None:
    job = await start(world, refused_at(AdmissionMoment.STAGE))
    status = await rest(job)
    if status is JobStatus.FAILED:
        return  # the process died before a plan was saved
    await check_not_admitted(world, job)
    Asked.answers = staticmethod(allowed)  # type: ignore[assignment]
    assert await ask(job, RequestKind.RESUME) in ("RESUMED", "ALREADY_RUNNING", "COMPLETED")
    assert await rest(job) is JobStatus.COMPLETED_SUCCESSFULLY
    await check_end(world)


@pytest.mark.parametrize("cut", list(Cut))
@pytest.mark.parametrize("kills", [True, False])
def test_a_refusal_is_cut_at_every_write(cut: Cut, kills: bool) -> None:
    world = World()

    async def count() -> int:
        await refused_and_resumed(world)
        return world.job_writes[0]

    writes = run(count())
    for at in range(list(Cut).index(cut), writes, 3):
        run(refused_and_resumed(World(job_faults=[Fault(at, cut, kills=kills)])))


# Who is asked, and what counts as an answer.


def yes(question: AdmissionQuestion) -> bool:
    seen.append(question)
    return True


async def no(question: AdmissionQuestion) -> bool:
    return False


def broken(question: AdmissionQuestion) -> bool:
    raise RuntimeError("out of order")


async def silent(question: AdmissionQuestion) -> bool:
    await asyncio.sleep(3600.0)
    return False


seen: list[AdmissionQuestion] = []
HERE = __name__


@pytest.mark.parametrize(
    ("names", "is_allowed", "told"),
    [
        ([], True, ""),
        (["yes"], True, ""),
        (["yes", "no"], False, "no refused"),
        (["broken", "no"], False, "no refused"),
        (["broken", "yes"], None, "RuntimeError: out of order"),
        (["silent", "no"], None, "did not answer within"),
        (["nowhere"], None, "cannot be imported"),
        (["HERE"], None, "cannot be called"),
    ],
)
def test_all_must_allow_and_a_refusal_goes_before_silence(names: list[str], is_allowed: bool | None, told: str) -> None:
    async def story() -> None:
        world = World()
        Work.world = world
        options = JobsOptions(
            admissions=tuple(f"{HERE}:{name}" for name in names), admission_timeout=timedelta(seconds=5)
        )
        job = await world.start(KeptPieces, batch(PIECES), options=options)
        document = await world.document()
        seen.clear()
        answer = await ask_to_start(KeptPieces, batch(PIECES), document, SimUserCode(call_inline))
        assert answer.is_allowed is is_allowed
        assert told in answer.why
        if "yes" in names:
            assert (seen[0].job_id, seen[0].moment) == (job.job_id, AdmissionMoment.START)
            assert isinstance(seen[0].request, Batch)

    run(story())


def test_a_module_that_is_not_there_is_a_sentence() -> None:
    async def story() -> None:
        world = World()
        Work.world = world
        await world.start(KeptPieces, batch(PIECES), options=JobsOptions(admissions=("no_such_module:f",)))
        answer = await ask_to_start(KeptPieces, batch(PIECES), await world.document(), SimUserCode(call_inline))
        assert answer.is_allowed is None
        assert "'no_such_module:f' of JobsOptions.admissions cannot be imported" in answer.why

    run(story())


# Planted faults.


def test_silence_taken_for_permission_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    take = admission.Admission.take

    def hasty(self: Any, event: Any, time: Instant) -> bool:
        return take(self, replace(event, is_allowed=event.is_allowed is not False), time)

    monkeypatch.setattr(admission.Admission, "take", hasty)
    with pytest.raises(AssertionError):
        test_a_recovery_is_asked_for_before_anything_starts()


def test_a_refusal_that_does_not_stop_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    take = admission.Admission.take

    def deaf(self: Any, event: Any, time: Instant) -> bool:
        if event.is_allowed is False:
            return True
        return take(self, event, time)

    monkeypatch.setattr(admission.Admission, "take", deaf)
    with pytest.raises(AssertionError):
        test_a_stage_that_is_refused_stops_the_job_and_a_resume_asks_again()
