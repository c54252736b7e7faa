"""What must hold at the end of every story, read from the store and from the bodies' own marks."""

from __future__ import annotations

from collections import Counter

from choreography_ray.codec import decode
from choreography_ray.core.ledger import recount, total
from choreography_ray.engine.verification import verify_job
from choreography_ray.job import label_of
from choreography_ray.model import FindingKind, JobId
from choreography_ray.records import JobDocument, StepCode
from choreography_ray.testing.code import LivingCode
from tests.simulation import jobs
from tests.simulation.jobs import Batch, BatchState
from tests.simulation.world import World

RESOLVE = LivingCode(jobs.Pieces).resolve


def check_world(world: World) -> None:
    """Nothing happened that must never, and nothing is left: no host, no slot."""
    assert not world.violations, world.violations[:5]
    assert not world.hosts, f"hosts are left: {list(world.hosts)}"
    assert world.table is None or world.table.held == 0, f"the throttle holds {world.table.held}"


async def check_end(world: World, job_id: str = "job") -> None:
    """Counts equal a recount, every hook ran exactly once in effect, every record is where it belongs."""
    assert not world.violations, world.violations[:5]
    verified = await verify_job(world.store, JobId(job_id))
    # What a job actor that wakes up after the end may still write into a cleared job is told as what remains.
    is_woken = world.is_woken(job_id)
    errors = [f for f in verified.findings if not (f.is_debris or (is_woken and f.kind is FindingKind.REMAINS))]
    assert not errors, errors[:5]
    document = await world.document(job_id)
    assert document.status.is_final, document.status
    assert document.plan is not None
    assert not document.journal
    counts = document.counts
    assert counts.succeeded + counts.failed + counts.unreachable == document.plan.total
    if document.is_cleared:
        await _check_cleared(world, document)
        return
    segments = await world.store.read_ledger(JobId(job_id), document.plan.fence)
    kinds = await world.store.read_plan(JobId(job_id), document.plan.fence)
    stages = recount(kinds, segments, document.plan.segment_steps)
    assert counts == total(stages)
    assert document.stage_counts == stages
    assert not any(group for segment in segments for group in segment.groups)
    request, state = decode(document.request, RESOLVE), decode(document.state, RESOLVE)
    assert isinstance(request, Batch)
    assert isinstance(state, BatchState)
    assert state.is_complete
    await _check_steps(world, document, request, state)


async def _check_steps(world: World, document: JobDocument, request: Batch, state: BatchState) -> None:
    job_id = document.job_id
    codes = world.codes(job_id)
    by_code = {code: [p.key for p, c in zip(request.pieces, codes, strict=True) if c == code] for code in StepCode}
    succeeded = Counter(by_code[StepCode.COMPLETED_SUCCESSFULLY])
    failed = Counter(by_code[StepCode.COMPLETED_WITH_FAILURE] + by_code[StepCode.FAILED])
    if document.type_name != label_of(jobs.SilentPieces):
        assert Counter(state.done) == succeeded
        assert Counter(state.failed) == failed
    records = await world.store.read_failures(job_id, take=100_000)
    assert Counter(r.step_id for r in records) == failed
    results = await world.store.read_results(job_id, take=100_000)
    assert [r.step_id for r in results] == (sorted(succeeded, key=_place(request)) if document.keep_results else [])
    ended = Counter(body.key for _, what, body in world.marks if what == "end" and body.job == job_id)
    assert all(ended[key] >= 1 for key in succeeded)
    # A stop counts attempts that were still to come as failed [S7.2].
    _check_attempts(document, request, codes, is_stopped=bool(world.requests))


def _place(request: Batch):  # type: ignore[no-untyped-def]
    return {piece.key: piece.ordinal for piece in request.pieces}.__getitem__


def _check_attempts(document: JobDocument, request: Batch, codes: bytes, *, is_stopped: bool) -> None:
    """A step whose body would have come through did, unless it could not be started or was not reached."""
    for piece, code in zip(request.pieces, codes, strict=True):
        if code == StepCode.COMPLETED_SUCCESSFULLY:
            assert piece.fail_first < document.options.max_step_attempts, piece
        if code == StepCode.COMPLETED_WITH_FAILURE and not is_stopped:
            assert piece.fail_first >= document.options.max_step_attempts, piece


async def _check_cleared(world: World, document: JobDocument) -> None:
    job_id = document.job_id
    assert document.request is None
    assert document.state is None
    left = world.store._job(job_id)
    records = {name: getattr(left, name) for name in ("plans", "segments", "prepared", "ledger", "steps", "failures")}
    # A job actor that wakes up after the end may still finish what it was writing: debris, swept with the summary.
    assert world.is_woken(job_id) or not any(records.values()), {
        name: len(kept) for name, kept in records.items() if kept
    }
    assert len(left.results) == (document.counts.succeeded if document.keep_results else 0)
