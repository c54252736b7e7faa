"""What goes between the processes of a job and its hosts comes out of pickle as it went in."""

from __future__ import annotations

import pickle

import pytest

from choreography_ray.engine.ports import Lease, StepWork, Work
from choreography_ray.model import HostId, JobId, StepId
from choreography_ray.records import Failure, Outcome, OutcomeDocument, OutcomeKey, OutcomeKind, Run

HOST = HostId("shared-7.1")
STEPS = (StepWork(3, 1, StepId("a"), {"n": 1}), StepWork(4, 2, StepId("b"), None, crashes=1, base=1))
OUTCOMES = (
    Outcome(3, 1, OutcomeKind.SUCCEEDED, {"n": [1, 2]}),
    Outcome(4, 2, OutcomeKind.FAILED, failure=Failure("ValueError", "no"), state={"n": 1}, crash=1, has_document=True),
)


@pytest.mark.parametrize("steps", [STEPS, STEPS[:1], ()])
def test_work_travels(steps: tuple[StepWork, ...]) -> None:
    lease = Lease(30.0, 7, Work(HOST, Run(7, 1), 2, 10, "app:Step", steps))
    assert pickle.loads(pickle.dumps(lease)) == lease


@pytest.mark.parametrize("outcomes", [OUTCOMES, OUTCOMES[:1], ()])
def test_outcomes_travel(outcomes: tuple[Outcome, ...]) -> None:
    document = OutcomeDocument(JobId("job"), OutcomeKey(HOST, Run(7, 1), 0), outcomes, 0.5)
    read = pickle.loads(pickle.dumps(document))
    assert read == document
    assert all(type(outcome) is Outcome for outcome in read.outcomes)
