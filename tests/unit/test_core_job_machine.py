"""What the job machine does when several things happen in one turn."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from choreography_ray.core import commands as c
from choreography_ray.core import events as e
from choreography_ray.core.instant import Instant
from choreography_ray.core.job_machine import JobMachine
from choreography_ray.core.ledger import Ledger, split
from choreography_ray.core.policies import LOOK_AGAIN_SECONDS
from choreography_ray.core.situation import JobRules
from choreography_ray.core.slot_messages import Exchange, FencedReply
from choreography_ray.core.slots import JobSlots
from choreography_ray.core.turn import Turn
from choreography_ray.errors import Fenced
from choreography_ray.model import AdmissionMoment, HostId, JobId, JobStatus, StageFailureBehavior
from choreography_ray.options import JobsOptions
from choreography_ray.records import CodeRef, Group, JobDocument, LedgerSegment, PlanRef, Run, StepCode, StepKind

AT = datetime(2030, 1, 1, tzinfo=UTC)
NOW = Instant(1000.0, AT)
KINDS = (StepKind(0, "app:Step"), StepKind(10, "app:Step"))


def a_document(**fields: Any) -> JobDocument:
    return JobDocument(JobId("job"), "Job", CodeRef("app", "Job"), None, None, JobsOptions(), AT, AT, **fields)


def a_machine_whose_first_stage_has_failed(*, is_admission_asked: bool = False) -> JobMachine:
    """Two stages of one step; the first has failed, and the job has not been asked what that means."""
    document = a_document(status=JobStatus.RUNNING, fence=1, plan=PlanRef(1, 1, 2), stage=0, has_started_hook=True)
    (segment,) = split([0, 1], 1, 250)
    codes = bytes([StepCode.COMPLETED_WITH_FAILURE, StepCode.PREPARED])
    ledger = Ledger(KINDS, [LedgerSegment(0, 1, 0, codes, segment.kinds)], 250)
    rules = JobRules(is_admission_asked=is_admission_asked)
    machine = JobMachine(document, ledger, JobSlots(JobId("job"), "actor", 1, 30.0), rules, NOW)
    machine.recover((), (), NOW, is_admitted=True)
    asked = machine.handle([e.ResumeHookRan()], NOW)
    assert c.AskFailureBehavior(0) in asked
    return machine


def test_an_old_incarnation_that_reads_a_newer_ones_ledger_looks_for_no_host() -> None:
    """It was cut off between its fence and this read. It would have ended hosts that its successor has made [S7.4]."""
    (segment,) = split([0], 1, 250)
    newer = Group(HostId("shared-5.1"), Run(5, 1), 1, (0,), (1,))
    ledger = Ledger(KINDS[:1], [LedgerSegment(0, 5, 1, bytes([StepCode.SCHEDULED]), segment.kinds, (newer,))], 250)
    document = a_document(status=JobStatus.RUNNING, fence=3, plan=PlanRef(1, 1, 1), stage=0)
    machine = JobMachine(document, ledger, JobSlots(JobId("job"), "actor", 3, 30.0), JobRules(), NOW)
    with pytest.raises(Fenced):
        machine.recover((), (), NOW)


def go_on() -> e.FailureBehaviorAnswered:
    return e.FailureBehaviorAnswered(0, StageFailureBehavior.CONTINUE_WITH_NEXT_STAGE)


def test_the_next_stage_begins_when_the_job_says_so() -> None:
    machine = a_machine_whose_first_stage_has_failed()
    machine.handle([go_on()], NOW)
    assert (machine.document.stage, machine.document.status) == (10, JobStatus.RUNNING)


def test_a_stop_beats_a_stage_that_is_not_yet_saved() -> None:
    """Both come in with one turn, in either order: the job stays at the stage that it had reached [S5.4]."""
    for events in ([go_on(), e.StopAsked(1)], [e.StopAsked(1), go_on()]):
        machine = a_machine_whose_first_stage_has_failed()
        commands = machine.handle(events, NOW)
        assert (machine.document.stage, machine.document.status) == (0, JobStatus.STOPPED)
        assert c.Answer((1,), "STOPPED") in commands
        assert machine.ledger.code(1) == StepCode.PREPARED


def test_what_the_hook_of_a_stop_makes_of_the_state_is_saved_with_it() -> None:
    machine = a_machine_whose_first_stage_has_failed()
    machine.handle([go_on(), e.StopAsked(1)], NOW)
    machine.handle([e.StoppedHookRan(state={"told": True})], NOW)
    assert (machine.document.state, machine.document.is_stop_finalized) == ({"told": True}, True)


def test_a_job_that_runs_is_not_resumed() -> None:
    machine = a_machine_whose_first_stage_has_failed()
    assert c.Answer((7,), "ALREADY_RUNNING") in machine.handle([e.ResumeAsked(7)], NOW)


def test_a_removal_is_asked_for_and_begins() -> None:
    machine = a_machine_whose_first_stage_has_failed()
    machine.handle([e.RemoveAsked(7)], NOW)
    assert machine.document.status is JobStatus.REMOVING


@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_job_is_not_woken_to_ask_for_an_admission_that_it_needs_no_more(is_stopped: bool) -> None:
    """Nobody had answered, and it would have been asked again after a second [S11]."""
    machine = a_machine_whose_first_stage_has_failed(is_admission_asked=True)
    assert c.AskAdmission(AdmissionMoment.STAGE) in machine.handle([go_on()], NOW)
    commands = machine.handle([e.AdmissionAnswered(None, AdmissionMoment.STAGE, "away")], NOW)
    assert c.SetTimer(NOW.now + 1.0) in commands
    if is_stopped:
        machine.handle([e.StopAsked(1)], NOW)
        machine.handle([e.StoppedHookRan()], NOW)
    else:
        machine.handle([e.AdmissionAnswered(True, AdmissionMoment.STAGE)], NOW)
    later = Instant(NOW.now + 5.0, AT)
    machine.handle([], later)
    (timer,) = (one for one in machine.handle([], later) if isinstance(one, c.SetTimer))
    assert timer.at > later.now + LOOK_AGAIN_SECONDS


def test_a_start_that_is_stopped_before_anything_came_up_is_told_so() -> None:
    document = a_document(status=JobStatus.STARTING_STEPS, fence=1, plan=PlanRef(1, 1, 2), has_started_hook=True)
    ledger = Ledger(KINDS, list(split([0, 1], 1, 250)), 250)
    machine = JobMachine(document, ledger, JobSlots(JobId("job"), "actor", 1, 30.0), JobRules(), NOW)
    machine.begin(NOW)
    assert c.ReportStart("STOPPED", ()) in machine.handle([e.StopAsked(1)], NOW)


def test_an_actor_that_was_made_for_a_retry_that_is_refused_leaves_at_once() -> None:
    document = a_document(
        status=JobStatus.COMPLETED_WITH_FAILURES, fence=1, plan=PlanRef(1, 1, 1), stage=0, has_started_hook=True
    )
    (segment,) = split([0], 1, 250)
    codes = bytes([StepCode.COMPLETED_WITH_FAILURE])
    ledger = Ledger(KINDS[:1], [LedgerSegment(0, 1, 0, codes, segment.kinds)], 250)
    machine = JobMachine(document, ledger, JobSlots(JobId("job"), "actor", 1, 30.0), JobRules(), NOW)
    machine.recover((), (), NOW)
    assert c.CheckRetry() in machine.handle([e.RetryAsked(3, "call")], NOW)
    assert not machine.is_finished
    assert c.Answer((3,), "NOT_SUPPORTED") in machine.handle([e.RetryChecked(False)], NOW)
    assert machine.is_finished


def test_an_incarnation_that_the_throttle_takes_for_an_old_one_asks_whether_it_is() -> None:
    """Until it is sure that it is the job's it says nothing more [S10.1]."""
    machine = a_machine_whose_first_stage_has_failed()
    later = Instant(NOW.now + 15.0, AT)
    (sent,) = (one for one in machine.handle([], later) if isinstance(one, c.SendExchange))
    commands = machine.handle([e.ThrottleReplied(FencedReply(sent.message.n))], later)
    assert c.CheckIncarnation() in commands
    much_later = Instant(NOW.now + 60.0, AT)
    assert not any(isinstance(one, c.SendExchange) for one in machine.handle([], much_later))
    again = machine.handle([e.IncarnationConfirmed()], much_later)
    assert any(isinstance(one, c.SendExchange) for one in again)


def test_the_last_word_to_the_throttle_waits_for_what_it_rests_on() -> None:
    """That a job holds nothing any more may be said once its end is durable; what it holds, at once."""
    exchange = Exchange(JobId("job"), "actor", 1, 1, 1, (), 0, 0)
    for is_last in (False, True):
        turn = Turn(is_job_deleted=True, clear=c.ClearJob(False))
        turn.speak(exchange, is_last=is_last)
        commands = turn.commands()
        assert commands.index(c.SendExchange(exchange)) == (len(commands) - 1 if is_last else 0)
