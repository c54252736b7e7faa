"""What the job decides about outcomes, as a journal, and how the journal is carried out [S6.5].

The same code carries out a decision when it is made and repeats it after a crash: only where the ledger still shows
the attempt, or the status, that the decision answers.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
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
    found: dict[tuple[OutcomeKey | None, Decision, StepCode], list[tuple[int, int, datetime | None]]] = {}
    for item, due in items:
        decision = Decision.RETRY if due is not None else _FINAL_DECISION[item.outcome.kind]
        place = (item.key, decision, item.left)
        found.setdefault(place, []).append((item.outcome.ordinal, item.outcome.attempt, due))
    return tuple(
        JournalEntry(
            decision,
            key,
            tuple(o for o, _, _ in steps),
            tuple(a for _, a, _ in steps),
            tuple(due for _, _, due in steps if due is not None),
            left,
        )
        for (key, decision, left), steps in found.items()
    )


@dataclass(slots=True)
class Effects:
    """The writes that carry out a journal, between the job document's and the ledger's."""

    retries: list[Decided] = field(default_factory=list[Decided])
    failures: list[Decided] = field(default_factory=list[Decided])
    results: list[Decided] = field(default_factory=list[Decided])
    stopped: list[Decided] = field(default_factory=list[Decided])
    closed: list[tuple[int, Run]] = field(default_factory=list[tuple[int, Run]])


FindOutcome = Callable[[OutcomeKey, int], Outcome]


def carry_out(
    ledger: Ledger,
    journal: Iterable[JournalEntry],
    find: FindOutcome,
    *,
    documented: Container[int],
    keep_results: bool,
    latest: Run,
) -> Effects:
    """Settle in the ledger what the journal decided and it still shows; returns the other writes.

    `find(key, ordinal)` gives the outcome that was decided upon: it is in its document until the run is over.
    `documented` are the steps that have a step document, as far as the job knows; `latest` is above every run so far.
    """
    effects = Effects()
    for entry in journal:
        if entry.key is None:
            _carry_out_without_document(ledger, entry, effects, latest)
        else:
            shown = list(_still_shown(ledger, entry, entry.key.run))
            ledger.settle_all((ordinal for ordinal, _ in shown), CODE_OF[entry.decision])
            for ordinal, due in shown:
                outcome = find(entry.key, ordinal)
                is_documented = outcome.has_document or ordinal in documented
                if is_documented or keep_results or entry.decision is not Decision.SUCCEEDED:
                    decided = Decided(entry.key.run, outcome, due)
                    _take_effect(effects, entry.decision, decided, is_documented, keep_results)
    return effects


def _still_shown(ledger: Ledger, entry: JournalEntry, run: Run) -> Iterator[tuple[int, datetime | None]]:
    for i, (ordinal, attempt) in enumerate(zip(entry.ordinals, entry.attempts, strict=True)):
        assigned = ledger.assignment(ordinal)
        if assigned is not None and assigned.run == run and assigned.attempt == attempt:
            yield ordinal, entry.dues[i] if entry.dues else None


def _take_effect(
    effects: Effects, decision: Decision, decided: Decided, is_documented: bool, keep_results: bool
) -> None:
    outcome = decided.outcome
    if decision is Decision.RETRY:
        effects.retries.append(decided)
        return
    if decision is Decision.STOPPED:
        # What a resume goes on from; and that there is such a document says that the step had a place [S5.6].
        effects.stopped.append(decided)
        return
    if decision is Decision.SUCCEEDED:
        if keep_results:
            effects.results.append(decided)
    else:
        effects.failures.append(decided)
    if is_documented:
        effects.closed.append((outcome.ordinal, decided.run))


def _carry_out_without_document(ledger: Ledger, entry: JournalEntry, effects: Effects, latest: Run) -> None:
    if entry.decision is Decision.UNREACHABLE:
        for code in (StepCode.PREPARED, StepCode.STOPPED):  # single steps may have been stopped ahead of their stage
            ledger.settle_all(ledger.ordinals_with(code, after_stage=entry.after_stage), StepCode.UNREACHABLE)
        return
    for ordinal, attempt in zip(entry.ordinals, entry.attempts, strict=True):
        if ledger.code(ordinal) != entry.left:
            continue
        ledger.settle(ordinal, CODE_OF[entry.decision])
        if entry.decision is Decision.FAILED:
            # A pending retry that a stop counts: all that is known of it is in its step document [S7.2].
            effects.failures.append(Decided(latest, Outcome(ordinal, attempt, OutcomeKind.FAILED)))
            effects.closed.append((ordinal, latest))
