"""What the job decides about outcomes, as a journal, and how the journal is carried out [S6.5].

The same code carries out a decision when it is made and repeats it after a crash: only where the ledger still shows
the attempt, or the status, that the decision answers.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from choreography_ray.core.commands import Decided, ReportedOutcome
from choreography_ray.core.ledger import Ledger
from choreography_ray.records import Decision, JournalEntry, Outcome, OutcomeKey, OutcomeKind, Run, StepCode

CODE_OF: Mapping[Decision, StepCode] = {
    Decision.SUCCEEDED: StepCode.COMPLETED_SUCCESSFULLY,
    Decision.FAILED: StepCode.COMPLETED_WITH_FAILURE,
    Decision.START_FAILED: StepCode.FAILED,
    Decision.RETRY: StepCode.AWAITING_RETRY,
    Decision.STOPPED: StepCode.STOPPED,
    Decision.UNREACHABLE: StepCode.UNREACHABLE,
}

_FINAL_DECISION: Mapping[OutcomeKind, Decision] = {
    OutcomeKind.SUCCEEDED: Decision.SUCCEEDED,
    OutcomeKind.FAILED: Decision.FAILED,
    OutcomeKind.START_FAILED: Decision.START_FAILED,
    OutcomeKind.CRASHED: Decision.START_FAILED,
    OutcomeKind.STOPPED: Decision.STOPPED,
}


def write_journal(items: Sequence[tuple[ReportedOutcome, datetime | None]]) -> tuple[JournalEntry, ...]:
    """One entry per outcome document and decision. The datetime is when a retry is due; None: final."""
    found: dict[tuple[OutcomeKey, Decision], list[tuple[int, int, datetime | None]]] = {}
    for item, due in items:
        decision = Decision.RETRY if due is not None else _FINAL_DECISION[item.outcome.kind]
        found.setdefault((item.key, decision), []).append((item.outcome.ordinal, item.outcome.attempt, due))
    return tuple(
        JournalEntry(
            decision,
            key,
            tuple(o for o, _, _ in steps),
            tuple(a for _, a, _ in steps),
            tuple(due for _, _, due in steps if due is not None),
        )
        for (key, decision), steps in found.items()
    )


@dataclass(slots=True)
class Effects:
    """The writes that carry out a journal, between the job document's and the ledger's."""

    retries: list[Decided] = field(default_factory=list[Decided])
    failures: list[Decided] = field(default_factory=list[Decided])
    results: list[Decided] = field(default_factory=list[Decided])
    closed: list[tuple[int, Run]] = field(default_factory=list[tuple[int, Run]])


FindOutcome = Callable[[OutcomeKey, int], Outcome]


def carry_out(
    ledger: Ledger,
    journal: Iterable[JournalEntry],
    find: FindOutcome,
    *,
    documented: Container[int],
    keep_results: bool,
) -> Effects:
    """Settle in the ledger what the journal decided and it still shows; returns the other writes.

    `find(key, ordinal)` gives the outcome that was decided upon: it is in its document until the run is over.
    `documented` are the steps that have a step document, as far as the job knows.
    """
    effects = Effects()
    for entry in journal:
        if entry.key is None:
            _carry_out_without_document(ledger, entry)
        else:
            _carry_out_document(ledger, entry, entry.key, find, effects, documented, keep_results)
    return effects


def _carry_out_without_document(ledger: Ledger, entry: JournalEntry) -> None:
    ordinals: Iterable[int] = entry.ordinals
    if entry.decision is Decision.UNREACHABLE:
        ordinals = ledger.ordinals_with(StepCode.PREPARED, after_stage=entry.after_stage)
    for ordinal in ordinals:
        if ledger.code(ordinal) == entry.left:
            ledger.settle(ordinal, CODE_OF[entry.decision])


def _carry_out_document(
    ledger: Ledger,
    entry: JournalEntry,
    key: OutcomeKey,
    find: FindOutcome,
    effects: Effects,
    documented: Container[int],
    keep_results: bool,
) -> None:
    code = CODE_OF[entry.decision]
    for i, (ordinal, attempt) in enumerate(zip(entry.ordinals, entry.attempts, strict=True)):
        assigned = ledger.assignment(ordinal)
        if assigned is None or assigned.run != key.run or assigned.attempt != attempt:
            continue
        ledger.settle(ordinal, code)
        outcome = find(key, ordinal)
        if entry.decision is Decision.RETRY:
            effects.retries.append(Decided(key.run, outcome, entry.dues[i]))
            continue
        if entry.decision is Decision.SUCCEEDED:
            if keep_results:
                effects.results.append(Decided(key.run, outcome))
        else:
            effects.failures.append(Decided(key.run, outcome))
        if outcome.has_document or ordinal in documented:
            effects.closed.append((ordinal, key.run))
