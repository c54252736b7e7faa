"""What must hold at the end of every story, read from the store and from the bodies' own marks."""

from __future__ import annotations

from collections import Counter

from choreography_ray.codec import decode
from choreography_ray.core.ledger import recount, total
from choreography_ray.model import JobId
from choreography_ray.records import StepCode
from tests.simulation.jobs import Batch, BatchState
from tests.simulation.world import World, _types
from tests.simulation import jobs


async def check_end(world: World, job_id: str = "job") -> None:
    """Counts equal a recount, every hook ran exactly once in effect, no stage began early, the bound was kept."""
    document = await world.document(job_id)
    assert document.status.is_final, document.status
    assert document.plan is not None
    assert not document.journal
    segments = await world.store.read_ledger(JobId(job_id))
    kinds = await world.store.read_plan(JobId(job_id), document.plan.fence)
    stages = recount(kinds, segments, document.plan.segment_steps)
    assert document.counts == total(stages)
    assert document.stage_counts == stages
    counts = document.counts
    assert counts.succeeded + counts.failed + counts.unreachable == document.plan.total
    assert not any(group for segment in segments for group in segment.groups)
    resolve = _types(jobs.Pieces).__getitem__
    request, state = decode(document.request, resolve), decode(document.state, resolve)
    assert isinstance(request, Batch) and isinstance(state, BatchState)
    await _check_steps(world, job_id, request, state)
    _check_marks(world)


async def _check_steps(world: World, job_id: str, request: Batch, state: BatchState) -> None:
    codes = b"".join(s.codes for s in await world.store.read_ledger(JobId(job_id)))
    by_code = {code: [p.key for p, c in zip(request.pieces, codes, strict=True) if c == code] for code in StepCode}
    failed = by_code[StepCode.COMPLETED_WITH_FAILURE] + by_code[StepCode.FAILED]
    assert Counter(state.done) == Counter(by_code[StepCode.COMPLETED_SUCCESSFULLY])
    assert Counter(state.failed) == Counter(failed)
    records = await world.store.read_failures(JobId(job_id), take=100_000)
    assert Counter(r.step_id for r in records) == Counter(failed)
    ended = Counter(key for _, what, (key, _, _) in world.marks if what == "end")
    assert all(ended[key] >= 1 for key in state.done)


def _check_marks(world: World) -> None:
    assert world.peak <= world.slots, f"{world.peak} bodies at once, the bound is {world.slots}"
    running: Counter[str] = Counter()
    stages = sorted({stage for _, _, (_, stage, _) in world.marks})
    last_end = {s: max(t for t, what, (_, stage, _) in world.marks if what == "end" and stage == s) for s in stages}
    for time, what, (key, stage, _) in world.marks:
        running[key] += 1 if what == "begin" else -1
        assert running[key] <= 1, f"two bodies of {key} at once"
        if what == "begin":
            assert all(time >= last_end[s] for s in stages if s < stage), f"stage {stage} began early"
