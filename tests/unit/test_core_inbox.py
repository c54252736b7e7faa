"""What the inbox keeps of what hosts delivered, and for how long."""

from __future__ import annotations

from choreography_ray.core.inbox import Inbox
from choreography_ray.core.ledger import Ledger, split
from choreography_ray.model import HostId, JobId, StepHosting
from choreography_ray.records import (
    Decision,
    Group,
    JournalEntry,
    Outcome,
    OutcomeDocument,
    OutcomeKey,
    OutcomeKind,
    Run,
    StepKind,
)

HOST, RUN = HostId("shared-1.1"), Run(1, 1)
KEYS = (OutcomeKey(HOST, RUN, 0), OutcomeKey(HOST, RUN, 1))


def test_a_document_goes_when_its_run_is_recorded_and_no_journal_names_it() -> None:
    ledger = Ledger((StepKind(0, "m:A", StepHosting.SHARED_ACTORS),), list(split([0, 0], 1, 100)), 100)
    inbox = Inbox(ledger)
    group = Group(HOST, RUN, 1, (0, 1), (1, 1))
    ledger.assign(group)
    inbox.expect(group)
    for ordinal, key in enumerate(KEYS):
        document = OutcomeDocument(JobId("j"), key, (Outcome(ordinal, 1, OutcomeKind.SUCCEEDED),))
        assert inbox.take(document) == list(document.outcomes)
        assert inbox.take(document) == [], "it counts once"
    assert inbox.close_if_over(RUN)
    assert not inbox.drop(())
    inbox.run_recorded(RUN)
    named = JournalEntry(Decision.SUCCEEDED, KEYS[1], (1,), (1,))
    assert inbox.drop((named,)) == KEYS[:1]
    assert inbox.find(KEYS[1], 1).ordinal == 1, "a repeated journal would read it"
    assert inbox.drop(()) == KEYS[1:]
