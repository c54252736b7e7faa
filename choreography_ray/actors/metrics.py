"""What does Ray export of a namespace as metrics? The one file that touches `ray.util.metrics` [S16].

A job's type is a tag and its id is not: there is no end to ids. Job actors tell the supervisor what they counted, and
the throttle shows its table, so that what is exported lives as long as the cluster.
"""

from __future__ import annotations

from typing import NamedTuple

from ray.util.metrics import Counter, Gauge, Histogram

from choreography_ray.core.throttle import ThrottleView
from choreography_ray.engine.tally import Counted, Measured, Numbers

PREFIX = "choreography_"
BUCKETS = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0, 3_000.0, 10_000.0]
"""Seconds."""


class Metric(NamedTuple):
    """One metric, without the prefix. `kind`: the tag beside namespace and job type; empty: none."""

    description: str
    kind: str = ""


COUNTERS: dict[Counted, Metric] = {
    Counted.JOBS: Metric("How often jobs reached a status", "status"),
    Counted.STEPS: Metric("Steps that reached a final status, or were stopped", "status"),
    Counted.RETRIES: Metric("Failed attempts after which another one was decided"),
    Counted.DELIVERIES: Metric("Groups of outcomes that hosts told their job"),
    Counted.WATCHDOG_FINDINGS: Metric("Outcomes that were persisted and never told, and that the watchdog found"),
    Counted.LOST_HOSTS: Metric("Hosts that ended before their steps had: of which cause", "cause"),
    Counted.STORE_ERRORS: Metric("Calls of job actors that the store did not answer, and that were repeated"),
}
HISTOGRAMS: dict[Measured, Metric] = {
    Measured.STEP: Metric("Seconds of its host that a step took: the mean of each group that was told at once"),
    Measured.RECORDING: Metric("Seconds from the arrival of a group of outcomes until it was recorded"),
}
GAUGES: dict[str, Metric] = {
    "slots_maximum": Metric("How many step bodies may run at once"),
    "slots_used": Metric("Slots that jobs hold"),
    "slots_wanted": Metric("Slots that jobs want beyond those that they hold"),
    "slots_longest_wait_seconds": Metric("How long the job that has waited longest for a slot has waited"),
    "jobs_at_work": Metric("Jobs whose actor the throttle knows"),
}
"""Shown by the throttle, once a second."""


class JobMetrics:
    """What happened in all jobs of a namespace, as counters and histograms."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        common = ("namespace", "job_type")
        self._counters = {
            what: Counter(PREFIX + what, one.description, (*common, one.kind) if one.kind else common)
            for what, one in COUNTERS.items()
        }
        self._histograms = {
            what: Histogram(PREFIX + what, one.description, BUCKETS, common) for what, one in HISTOGRAMS.items()
        }

    def add(self, numbers: Numbers) -> None:
        """Count what a job actor tells."""
        tags = {"namespace": self._namespace, "job_type": numbers.job_type}
        for (what, kind), amount in numbers.counts.items():
            self._counters[what].inc(amount, {**tags, COUNTERS[what].kind: kind} if kind else tags)
        for measured, values in numbers.seconds.items():
            for value in values:
                self._histograms[measured].observe(value, tags)


class SlotMetrics:
    """The throttle's table as gauges."""

    def __init__(self, namespace: str) -> None:
        self._tags = {"namespace": namespace}
        self._gauges = {name: Gauge(PREFIX + name, one.description, ("namespace",)) for name, one in GAUGES.items()}

    def show(self, view: ThrottleView) -> None:
        """Show how it stands."""
        jobs = [job for job in view.jobs.values() if job.is_listed]
        for name, value in (
            ("slots_maximum", view.maximum),
            ("slots_used", view.held),
            ("slots_wanted", sum(job.wanted for job in jobs)),
            ("slots_longest_wait_seconds", max((job.waiting for job in jobs), default=0.0)),
            ("jobs_at_work", len(jobs)),
        ):
            self._gauges[name].set(value, self._tags)
