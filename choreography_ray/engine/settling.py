"""How the job settles steps of a run by itself: at the first free place, bowing to whoever was there before [S6.4]."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from choreography_ray.engine.writes import Writer
from choreography_ray.model import HostId, JobId
from choreography_ray.records import Outcome, OutcomeDocument, OutcomeKey, Run
from choreography_ray.storage.protocol import JobStorage
from choreography_ray.storage.sizes import are_small, parts, payload_size


def outcome_parts(outcomes: Sequence[Outcome]) -> Iterator[Sequence[Outcome]]:
    """Outcomes in as many documents as their sizes ask for, in order."""
    has_failures = any(outcome.failure is not None for outcome in outcomes)
    if has_failures or not are_small([*(o.value for o in outcomes), *(o.state for o in outcomes)]):
        yield from parts(outcomes, _size)
    else:
        yield outcomes


def _size(outcome: Outcome) -> int:
    """Bytes that an outcome takes in a document, at most."""
    failure = outcome.failure
    told = 0 if failure is None else 4 * (len(failure.message) + len(failure.traceback)) + 512
    return payload_size(outcome.value) + payload_size(outcome.state) + told + 64


async def insert_at_first_free(
    storage: JobStorage, writer: Writer, document: OutcomeDocument
) -> tuple[OutcomeDocument | None, list[OutcomeDocument]]:
    """Insert the document at its key's n or the next free one, without the steps that earlier entries name.

    Returns what was inserted (None when nothing was left to say), and the documents that were in the way.
    """
    found: list[OutcomeDocument] = []
    while document.outcomes:
        there = await writer.certain(lambda document=document: storage.insert_outcome(document))  # type: ignore[misc]
        if there is None or there == document:
            return document, found
        found.append(there)
        named = {outcome.ordinal for outcome in there.outcomes}
        left = tuple(outcome for outcome in document.outcomes if outcome.ordinal not in named)
        key = OutcomeKey(document.key.host, document.key.run, document.key.n + 1)
        document = OutcomeDocument(document.job_id, key, left, document.seconds)
    return None, found


async def settle_run(
    storage: JobStorage, writer: Writer, job_id: JobId, host: HostId, run: Run, outcomes: Sequence[Outcome]
) -> tuple[OutcomeDocument, ...]:
    """Insert the job's own entries for a run, then read all of its documents, in the order of n.

    What the steps report of themselves may take more than one document.
    """
    if outcomes:
        for part in outcome_parts(outcomes):
            document = OutcomeDocument(job_id, OutcomeKey(host, run, 0), tuple(part))
            await insert_at_first_free(storage, writer, document)
    return tuple(await writer.certain(lambda: storage.read_outcomes(job_id, host, run)))
