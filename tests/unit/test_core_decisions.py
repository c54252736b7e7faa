"""Decisions are journalled, carried out, and after a crash repeated only where the ledger still shows them."""

from __future__ import annotations

from datetime import UTC, datetime

from choreography_ray.core.commands import ReportedOutcome
from choreography_ray.core.decisions import Effects, carry_out, write_journal
from choreography_ray.core.ledger import Ledger, split
from choreography_ray.model import HostId
from choreography_ray.records import (
    Decision,
    Group,
    JournalEntry,
    Outcome,
    OutcomeKey,
    OutcomeKind,
    Run,
    StepCode,
    StepKind,
)

HOST, RUN = HostId("shared-1.1"), Run(1, 1)
KEY = OutcomeKey(HOST, RUN, 0)
DUE = datetime(2030, 1, 1, tzinfo=UTC)
OUTCOMES = {
    0: Outcome(0, 1, OutcomeKind.SUCCEEDED, value="a"),
    1: Outcome(1, 1, OutcomeKind.FAILED),
    2: Outcome(2, 1, OutcomeKind.FAILED, has_document=True),
    3: Outcome(3, 1, OutcomeKind.CRASHED),
}


def assigned(*ordinals: int) -> Ledger:
    ledger = Ledger((StepKind(0, "m:A"), StepKind(10, "m:B")), list(split([0, 0, 0, 0, 1, 1], 1, 100)), 100)
    ledger.assign(Group(HOST, RUN, 1, ordinals, (1,) * len(ordinals)))
    return ledger


def decided(
    ledger: Ledger, journal: tuple[JournalEntry, ...], *, keep: bool = True, documented: object = ()
) -> Effects:
    return carry_out(
        ledger,
        journal,
        lambda key, ordinal: OUTCOMES[ordinal],
        documented=documented,  # type: ignore[arg-type]
        keep_results=keep,
        latest=Run(1, 99),
    )


def all_of_them() -> tuple[JournalEntry, ...]:
    items = [(ReportedOutcome(KEY, OUTCOMES[o], True), DUE if o == 1 else None) for o in OUTCOMES]
    return write_journal(items)


def test_there_is_an_entry_per_document_and_decision() -> None:
    journal = all_of_them()
    assert {(entry.decision, entry.ordinals, entry.dues) for entry in journal} == {
        (Decision.SUCCEEDED, (0,), ()),
        (Decision.RETRY, (1,), (DUE,)),
        (Decision.FAILED, (2,), ()),
        (Decision.START_FAILED, (3,), ()),
    }


def test_each_decision_has_its_effects() -> None:
    ledger = assigned(0, 1, 2, 3)
    effects = decided(ledger, all_of_them())
    assert [StepCode(ledger.code(o)) for o in range(4)] == [
        StepCode.COMPLETED_SUCCESSFULLY,
        StepCode.AWAITING_RETRY,
        StepCode.COMPLETED_WITH_FAILURE,
        StepCode.FAILED,
    ]
    assert [one.outcome.ordinal for one in effects.results] == [0]
    assert [(one.outcome.ordinal, one.due) for one in effects.retries] == [(1, DUE)]
    assert [one.outcome.ordinal for one in effects.failures] == [2, 3]
    assert effects.closed == [(2, RUN)], "only what has a step document loses it"


def test_a_repeated_journal_changes_nothing_where_it_was_carried_out() -> None:
    ledger = assigned(0, 1, 2, 3)
    decided(ledger, all_of_them())
    counts = ledger.counts()
    assert decided(ledger, all_of_them()) == Effects()
    assert ledger.counts() == counts


def test_an_old_entry_does_not_undo_the_retry_that_has_begun() -> None:
    ledger = assigned(0, 1, 2, 3)
    decided(ledger, all_of_them())
    ledger.assign(Group(HostId("shared-1.2"), Run(1, 2), 1, (1,), (2,)))
    assert decided(ledger, all_of_them()) == Effects()
    assert ledger.code(1) == StepCode.SCHEDULED


def test_what_was_carried_out_in_part_is_finished() -> None:
    """The crash came between two segments of the ledger."""
    ledger = assigned(0, 1, 2, 3)
    ledger.settle(0, StepCode.COMPLETED_SUCCESSFULLY)
    effects = decided(ledger, all_of_them())
    assert effects.results == []
    assert [one.outcome.ordinal for one in effects.failures] == [2, 3]


def test_results_are_kept_only_where_the_job_asks_for_it() -> None:
    assert decided(assigned(0, 1, 2, 3), all_of_them(), keep=False).results == []


def test_a_document_that_only_the_job_knows_of_goes_too() -> None:
    """The host died and could not tell that it had written a checkpoint."""
    effects = decided(assigned(0, 1, 2, 3), all_of_them(), documented={0, 3})
    assert sorted(effects.closed) == [(0, RUN), (2, RUN), (3, RUN)]


def test_unreachable_means_every_prepared_step_of_later_stages() -> None:
    ledger = assigned(0)
    entry = JournalEntry(Decision.UNREACHABLE, after_stage=0)
    for _ in range(2):
        decided(ledger, (entry,))
        assert [StepCode(ledger.code(o)) for o in range(6)] == [
            StepCode.SCHEDULED,
            *[StepCode.PREPARED] * 3,
            *[StepCode.UNREACHABLE] * 2,
        ]


def test_steps_that_never_started_are_stopped_once() -> None:
    ledger = assigned(0)
    entry = JournalEntry(Decision.STOPPED, None, (1, 2), (1, 1), left=StepCode.PREPARED)
    decided(ledger, (entry,))
    decided(ledger, (entry,))
    assert ledger.counts().stopped == 2


def test_a_pending_retry_that_a_stop_counts_leaves_a_record_of_failure() -> None:
    ledger = assigned(1)
    ledger.settle(1, StepCode.AWAITING_RETRY)
    entry = JournalEntry(Decision.FAILED, None, (1,), (2,), left=StepCode.AWAITING_RETRY)
    effects = decided(ledger, (entry,))
    assert ledger.counts().failed == 1
    assert [one.outcome.ordinal for one in effects.failures] == [1]
    assert effects.closed == [(1, Run(1, 99))]
