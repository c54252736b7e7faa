"""One turn of a job machine: what it wants done, collected in any order, handed out in the one that is safe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from choreography_ray.core import commands as c
from choreography_ray.core.decisions import Effects
from choreography_ray.core.slot_messages import Exchange
from choreography_ray.records import LedgerSegment, Run, StepDocument


@dataclass(slots=True)
class Turn:
    """Collects. `commands` gives the order of PROTOCOLS part 1: job document, what steps have, ledger, the rest."""

    changes: dict[str, Any] = field(default_factory=dict[str, Any])
    save: c.SaveJob | None = None
    effects: list[Effects] = field(default_factory=list[Effects])
    raised: list[StepDocument] = field(default_factory=list[StepDocument])
    ledger: tuple[LedgerSegment, ...] = ()
    deleted_failures: list[tuple[int, Run]] = field(default_factory=list[tuple[int, Run]])
    clear: c.ClearJob | None = None
    is_job_deleted: bool = False
    wants_counts: bool = False
    """The job document's counts are to be taken from the ledger, as it is now."""
    messages: list[c.Command] = field(default_factory=list[c.Command])
    exchange: c.SendExchange | None = None

    def change(self, **fields: Any) -> None:
        """Change fields of the job document with this turn's write of it."""
        self.changes.update(fields)

    def say(self, command: c.Command) -> None:
        """Do this once the writes are durable."""
        self.messages.append(command)

    def speak(self, exchange: Exchange, *, is_last: bool) -> None:
        """Tell the throttle what is held. That need not wait for the writes, but for the last word.

        What it says is over has a durable outcome or is dead; what it says has begun may turn out never to.
        """
        if is_last:
            self.say(c.SendExchange(exchange))
        else:
            self.exchange = c.SendExchange(exchange)

    @property
    def has_writes(self) -> bool:
        """True when something that the next decision may rest on is durable only once this turn is carried out."""
        writes = (self.changes, self.effects, self.raised, self.ledger, self.deleted_failures, self.clear)
        return any(writes) or self.wants_counts

    def commands(self) -> list[c.Command]:
        """The turn in its order."""
        ordered: list[c.Command | None] = [self.exchange, self.save, *self._effects()]
        if self.raised:
            ordered.append(c.SaveStepDocuments(tuple(self.raised)))
        if self.ledger:
            ordered.append(c.SaveLedger(self.ledger))
        if self.deleted_failures:
            ordered.append(c.DeleteFailures(tuple(self.deleted_failures)))
        ordered.append(self.clear)
        if self.is_job_deleted:
            ordered.append(c.DeleteJob())
        return [command for command in ordered if command is not None] + self.messages

    def _effects(self) -> list[c.Command]:
        commands: list[c.Command] = []
        if retries := tuple(item for effects in self.effects for item in effects.retries):
            commands.append(c.SaveRetries(retries))
        if failures := tuple(item for effects in self.effects for item in effects.failures):
            commands.append(c.SaveFailures(failures))
        if results := tuple(item for effects in self.effects for item in effects.results):
            commands.append(c.SaveResults(results))
        if stops := tuple(item for effects in self.effects for item in effects.stopped):
            commands.append(c.SaveStops(stops))
        if closed := tuple(item for effects in self.effects for item in effects.closed):
            commands.append(c.DeleteStepDocuments(closed))
        return commands
