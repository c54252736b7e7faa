"""Which outcomes have come in, and how far are they: reported, being decided, or recorded but still needed?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from choreography_ray.core.commands import ReportedOutcome
from choreography_ray.core.ledger import Ledger
from choreography_ray.records import Group, JournalEntry, Outcome, OutcomeDocument, OutcomeKey, Run


@dataclass(frozen=True, slots=True)
class Deciding:
    """Outcomes that the hooks have before them, and the deliveries that wait for the decision."""

    ticket: int
    items: tuple[ReportedOutcome, ...]
    receipts: tuple[int, ...]


class Inbox:
    """Outcomes until they are decided, and the documents that a repeated journal would read."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._left: dict[Run, set[int]] = {}
        self._items: list[ReportedOutcome] = []
        self._receipts: list[int] = []
        self._deciding: Deciding | None = None
        self._documents: dict[OutcomeKey, dict[int, Outcome]] = {}
        self._over: list[OutcomeKey] = []

    # Runs, and what they still owe.

    def expect(self, group: Group) -> None:
        """A group was assigned: an outcome of each step will come."""
        self._left[group.run] = set(group.ordinals)

    def left(self, run: Run) -> set[int]:
        """Steps of a run without an outcome."""
        return self._left.get(run, set())

    def is_expected(self, run: Run) -> bool:
        """Whether anything of the run is still to come."""
        return run in self._left

    @property
    def active(self) -> int:
        """Steps that were started and have no outcome: what the window bounds [S5.6]."""
        return sum(map(len, self._left.values()))

    def take(self, document: OutcomeDocument) -> list[Outcome]:
        """The outcomes of a document that count: of the assigned (attempt, run), and the first of their step [S7.4]."""
        left = self._left.get(document.key.run)
        if not left:
            return []
        taken = [o for o in document.outcomes if o.ordinal in left and self._is_at(o, document.key.run)]
        left.difference_update(outcome.ordinal for outcome in taken)
        if taken:
            self.note(document)
        return taken

    def _is_at(self, outcome: Outcome, run: Run) -> bool:
        assigned = self._ledger.assignment(outcome.ordinal)
        return assigned is not None and assigned.run == run and assigned.attempt == outcome.attempt

    def close_if_over(self, run: Run) -> bool:
        """True, once, when every step of the run has its outcome."""
        if run not in self._left or self._left[run]:
            return False
        del self._left[run]
        return True

    # Documents: kept while a journal in the store may be repeated from them.

    def note(self, document: OutcomeDocument) -> None:
        """Keep a document at hand."""
        self._documents.setdefault(document.key, {outcome.ordinal: outcome for outcome in document.outcomes})

    def find(self, key: OutcomeKey, ordinal: int) -> Outcome:
        """The outcome that a journal entry was decided upon."""
        return self._documents[key][ordinal]

    def run_recorded(self, run: Run) -> None:
        """The ledger has no step at this run any more: its documents go once no stored journal names them."""
        self._over += [key for key in self._documents if key.run == run]

    def drop(self, journal: Iterable[JournalEntry]) -> tuple[OutcomeKey, ...]:
        """Documents that nothing needs now that this journal replaces the one before."""
        kept = {entry.key for entry in journal}
        gone = tuple(key for key in self._over if key not in kept)
        self._over = [key for key in self._over if key in kept]
        for key in gone:
            self._documents.pop(key, None)
        return gone

    # Deciding.

    def put(self, item: ReportedOutcome) -> None:
        """An outcome waits for the hooks."""
        self._items.append(item)

    def put_receipt(self, receipt: int) -> None:
        """A delivery waits for the decision of all that has come in until now."""
        self._receipts.append(receipt)

    def next_group(self, ticket: int, most: int) -> Deciding | None:
        """What the hooks get next; None while they have something, or nothing waits."""
        if self._deciding is not None or not self._items:
            return None
        items, self._items = tuple(self._items[:most]), self._items[most:]
        receipts: tuple[int, ...] = ()
        if not self._items:
            receipts, self._receipts = tuple(self._receipts), []
        self._deciding = Deciding(ticket, items, receipts)
        return self._deciding

    def idle_receipts(self) -> tuple[int, ...]:
        """Deliveries that brought nothing new: they may be acknowledged as nothing is being decided."""
        if self._deciding is not None or self._items:
            return ()
        receipts, self._receipts = tuple(self._receipts), []
        return receipts

    def decided(self, ticket: int) -> Deciding | None:
        """The group that the hooks answered; None for an answer that nobody asked for."""
        deciding = self._deciding
        if deciding is None or deciding.ticket != ticket:
            return None
        self._deciding = None
        return deciding

    def undecided(self) -> list[int]:
        """Steps whose outcome is there, and waits for the hooks or for their decision."""
        deciding = () if self._deciding is None else self._deciding.items
        return [item.outcome.ordinal for item in (*deciding, *self._items)]

    @property
    def is_idle(self) -> bool:
        """Nothing waits for a decision."""
        return self._deciding is None and not self._items
