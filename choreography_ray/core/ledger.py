"""Where each step of a job stands: the ledger, the one truth of what was counted [S3.2].

A byte per step, the groups that are assigned, and counts per stage that are kept as it changes. What changed since
the last save is handed out as segments, each with the save number that guards its write [S10.1].
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from choreography_ray.core.transitions import FINAL_CODES, check_step
from choreography_ray.model import HostId
from choreography_ray.records import Counts, Group, LedgerSegment, Run, StageCounts, StepCode, StepKind

_FINAL = frozenset(int(code) for code in FINAL_CODES)
_CODES = len(StepCode)


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the ledger says of a scheduled step."""

    host: HostId
    run: Run
    attempt: int


class Ledger:
    """The statuses of a job's steps. Mutated only by the job machine."""

    def __init__(self, kinds: Sequence[StepKind], segments: Sequence[LedgerSegment], segment_steps: int) -> None:
        self.kinds = tuple(kinds)
        self.segment_steps = segment_steps
        self._saves = [segment.save for segment in segments]
        self._plan = segments[0].plan if segments else 0
        self._codes = bytearray(b"".join(segment.codes for segment in segments))
        self._kind_of = array("H", b"".join(segment.kinds for segment in segments))
        self._groups: dict[Run, Group] = {}
        self._assigned: dict[int, Assignment] = {}
        self._by_segment: list[dict[Run, dict[int, int]]] = [{} for _ in segments]
        self._dirty: set[int] = set()
        self.stages = tuple(sorted({kind.stage for kind in self.kinds}))
        index = {stage: i for i, stage in enumerate(self.stages)}
        self._stage_of_kind = [index[kind.stage] for kind in self.kinds]
        self._tally = [[0] * _CODES for _ in self.stages]
        self._take_stock()
        for segment in segments:
            for group in segment.groups:
                self._note(segment.index, group)

    def _take_stock(self) -> None:
        # Counts by (kind, code) pairs in C: this runs over every step, once per incarnation.
        pairs: dict[tuple[int, int], int] = {}
        step = self.segment_steps
        for begin in range(0, len(self._codes), step):
            codes, kinds = self._codes[begin : begin + step], self._kind_of[begin : begin + step]
            if codes and codes.count(codes[0]) == len(codes) and kinds.count(kinds[0]) == len(kinds):
                pair = (kinds[0], codes[0])
                pairs[pair] = pairs.get(pair, 0) + len(codes)
            else:
                for pair in zip(kinds, codes, strict=True):
                    pairs[pair] = pairs.get(pair, 0) + 1
        for (kind, code), count in pairs.items():
            self._tally[self._stage_of_kind[kind]][code] += count

    def _note(self, segment: int, group: Group) -> None:
        known = self._groups.get(group.run)
        whole = known.ordinals + group.ordinals if known else group.ordinals
        tries = known.attempts + group.attempts if known else group.attempts
        self._groups[group.run] = Group(group.host, group.run, group.width, whole, tries)
        self._by_segment[segment][group.run] = dict(zip(group.ordinals, group.attempts, strict=True))
        for ordinal, attempt in zip(group.ordinals, group.attempts, strict=True):
            self._assigned[ordinal] = Assignment(group.host, group.run, attempt)

    def __len__(self) -> int:
        return len(self._codes)

    def code(self, ordinal: int) -> int:
        """The step's code, as a plain int."""
        return self._codes[ordinal]

    def kind(self, ordinal: int) -> int:
        """Index of the step's kind in `kinds`."""
        return self._kind_of[ordinal]

    def stage(self, ordinal: int) -> int:
        """The step's stage."""
        return self.stages[self._stage_of_kind[self._kind_of[ordinal]]]

    def assignment(self, ordinal: int) -> Assignment | None:
        """Host, run and attempt of a scheduled step."""
        return self._assigned.get(ordinal)

    def groups(self) -> Iterator[Group]:
        """The groups that still have scheduled steps, each with only those."""
        for run, group in self._groups.items():
            left = [(o, a) for o, a in zip(group.ordinals, group.attempts, strict=True) if self._is_at(o, run)]
            if left:
                yield Group(group.host, run, group.width, tuple(o for o, _ in left), tuple(a for _, a in left))

    def _is_at(self, ordinal: int, run: Run) -> bool:
        assigned = self._assigned.get(ordinal)
        return assigned is not None and assigned.run == run

    def ordinals_by_kind(self, stage: int) -> dict[int, Sequence[int]]:
        """The ordinals of each kind of a stage, in the order of the plan. Walks every step, once."""
        if len(self.kinds) == 1:
            return {0: range(len(self._codes))} if self.kinds[0].stage == stage else {}
        found = {index: array("I") for index, kind in enumerate(self.kinds) if kind.stage == stage}
        for ordinal, kind in enumerate(self._kind_of):
            if kind in found:
                found[kind].append(ordinal)
        return dict(found)

    def ordinals_with(self, code: StepCode, *, after_stage: int | None = None) -> list[int]:
        """Ordinals that have a code, of all stages or of those later than `after_stage`. Walks every step."""
        wanted = int(code)
        if after_stage is None:
            return [o for o, c in enumerate(self._codes) if c == wanted]
        later = {k for k, kind in enumerate(self.kinds) if kind.stage > after_stage}
        pairs = enumerate(zip(self._codes, self._kind_of, strict=True))
        return [o for o, (c, k) in pairs if c == wanted and k in later]

    def find(self, code: StepCode) -> Iterator[int]:
        """Ordinals of the steps with this code, in order."""
        ordinal = self._codes.find(code)
        while ordinal >= 0:
            yield ordinal
            ordinal = self._codes.find(code, ordinal + 1)

    def assign(self, group: Group) -> None:
        """Schedule the steps of a group on its host, from wherever they were."""
        self.settle_all(group.ordinals, StepCode.SCHEDULED)
        self._groups[group.run] = group
        assigned = {attempt: Assignment(group.host, group.run, attempt) for attempt in set(group.attempts)}
        for ordinal, attempt in zip(group.ordinals, group.attempts, strict=True):
            self._assigned[ordinal] = assigned[attempt]
            self._by_segment[ordinal // self.segment_steps].setdefault(group.run, {})[ordinal] = attempt

    def settle(self, ordinal: int, code: StepCode) -> None:
        """Give a step a code that has no host; raises `InvalidTransition` when the table forbids it."""
        self.settle_all((ordinal,), code)

    def settle_all(self, ordinals: Iterable[int], code: StepCode) -> None:
        """Give each of these steps a code that has no host; raises `InvalidTransition` as `settle` does."""
        codes, size = self._codes, self.segment_steps
        for ordinal in ordinals:
            before = codes[ordinal]
            check_step(before, code)
            if before == StepCode.SCHEDULED:
                self._leave(ordinal)
            tally = self._tally[self._stage_of_kind[self._kind_of[ordinal]]]
            tally[before] -= 1
            tally[code] += 1
            codes[ordinal] = code
            self._dirty.add(ordinal // size)

    def _leave(self, ordinal: int) -> None:
        before = self._assigned.pop(ordinal, None)
        if before is not None:
            here = self._by_segment[ordinal // self.segment_steps]
            steps = here[before.run]
            del steps[ordinal]
            if not steps:
                del here[before.run]

    def is_run_over(self, run: Run) -> bool:
        """True when no step is scheduled under the run any more."""
        group = self._groups.get(run)
        return group is None or not any(self._is_at(ordinal, run) for ordinal in group.ordinals)

    def forget_run(self, run: Run) -> None:
        """Drop what is kept of a run that is over."""
        self._groups.pop(run, None)

    @property
    def is_dirty(self) -> bool:
        """True when something changed since `take_changes`."""
        return bool(self._dirty)

    def take_changes(self, fence: int) -> tuple[LedgerSegment, ...]:
        """The segments that changed since the last call, by index, each with its next save number."""
        changed: list[LedgerSegment] = []
        for index in sorted(self._dirty):
            self._saves[index] += 1
            begin, end = index * self.segment_steps, (index + 1) * self.segment_steps
            groups = tuple(
                Group(self._groups[run].host, run, self._groups[run].width, tuple(steps), tuple(steps.values()))
                for run, steps in self._by_segment[index].items()
            )
            codes, kinds = bytes(self._codes[begin:end]), self._kind_of[begin:end].tobytes()
            changed.append(LedgerSegment(index, fence, self._saves[index], codes, kinds, groups, self._plan))
        self._dirty.clear()
        return tuple(changed)

    def count(self, stage: int, *codes: StepCode) -> int:
        """How many steps of a stage have one of the codes."""
        tally = self._tally[self.stages.index(stage)]
        return sum(tally[code] for code in codes)

    def open_steps(self, stage: int | None = None) -> int:
        """Steps without a final status, of a stage or of the job."""
        tallies = self._tally if stage is None else [self._tally[self.stages.index(stage)]]
        return sum(n for tally in tallies for code, n in enumerate(tally) if code not in _FINAL)

    def stage_counts(self) -> tuple[StageCounts, ...]:
        """Counts of each stage, in their order [S3.1]."""
        return tuple(_counts(stage, tally) for stage, tally in zip(self.stages, self._tally, strict=True))

    def counts(self) -> Counts:
        """Totals of the job [S3.1]."""
        return total(self.stage_counts())


def _counts(stage: int, tally: Sequence[int]) -> StageCounts:
    return StageCounts(
        stage,
        sum(tally),
        tally[StepCode.COMPLETED_SUCCESSFULLY],
        tally[StepCode.COMPLETED_WITH_FAILURE] + tally[StepCode.FAILED],
        tally[StepCode.STOPPED],
        tally[StepCode.UNREACHABLE],
    )


def total(stages: Iterable[StageCounts]) -> Counts:
    """The sum over stages."""
    stages = tuple(stages)
    return Counts(*(sum(stage[i] for stage in stages) for i in range(2, 6)))


def recount(
    kinds: Sequence[StepKind], segments: Sequence[LedgerSegment], segment_steps: int
) -> tuple[StageCounts, ...]:
    """Counts derived from stored segments alone: what readers and `verify` use [S3.2]."""
    return Ledger(kinds, segments, segment_steps).stage_counts()


def split(kind_indexes: Sequence[int], fence: int, segment_steps: int, plan: int = 0) -> Iterator[LedgerSegment]:
    """The segments of a new ledger, every step `PREPARED`, for steps of these kinds."""
    kinds = array("H", kind_indexes)
    for index, begin in enumerate(range(0, len(kinds), segment_steps)):
        part = kinds[begin : begin + segment_steps]
        yield LedgerSegment(index, fence, 0, bytes(len(part)), part.tobytes(), plan=plan)
