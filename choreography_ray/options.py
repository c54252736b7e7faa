"""Everything that can be set: options of jobs, and options of a namespace's cluster."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

MAX_COUNT = 2**31 - 1
"""The largest number that can be set: what is counted up to it is stored in 32 bits."""

Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]


def _s(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


class JobsOptions(BaseModel):
    """How a job runs and heals. Saved with the job, and valid for its recovery [S15]. Durations are `timedelta`."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    max_concurrent_step_starts: Count = 16
    """How many hosts a job starts at the same time. At least 1."""
    start_timeout: timedelta = _s(30)
    """How long `start` waits for the first window, once all steps are prepared. Zero: not at all."""
    max_active_steps_per_job: Annotated[int, Field(ge=-MAX_COUNT, le=MAX_COUNT)] | None = None
    """The active window in steps. None: what keeps the slots busy. Below 1 means 1 [S5.6]."""
    max_step_attempts: Count = 1
    """Attempts of a step in all. 1: a failure is final."""
    step_retry_backoff: timedelta = _s(5)
    """Delay before the second attempt; each further one doubles it. Zero: at once."""
    max_step_retry_backoff: timedelta = _s(300)
    """The longest delay between two attempts."""
    step_retry_jitter: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of a retry's delay that is drawn at random and added to it. Zero: none."""
    step_delivery_max_attempts: Count = 10
    """Deliveries of an outcome before its host leaves it to the watchdog."""
    step_delivery_retry_delay: timedelta = _s(1)
    """Delay before the second delivery; each further one doubles it."""
    max_step_delivery_retry_delay: timedelta = _s(30)
    """The longest delay between two deliveries."""
    step_stop_timeout: timedelta = _s(10)
    """How long a stopped body may go on before its process is ended [S9.2]. Zero: it is ended at once."""
    step_checkpoint_batch_interval: Count = 100
    """Debounced checkpoints until one is made durable [S6.3]."""
    step_checkpoint_flush_interval: timedelta = _s(5)
    """How long a debounced checkpoint may wait. Zero or less: no timer."""
    job_watchdog_interval: timedelta | None = _s(60)
    """How often a running job looks for what went missing. Zero, less or None: off [S8]."""
    hook_timeout: timedelta = _s(300)
    """How long a hook may take; one over it counts as raised. Zero or less: no bound."""
    placement_timeout: timedelta = _s(60)
    """How long a host may wait for its resources before its steps are queued again [S14.4]."""
    admissions: tuple[str, ...] = ()
    """Callables as "module:function" that are asked whether a job may run; each gets an `AdmissionQuestion` and answers
    True or False, or an awaitable of it [S11]. Empty: allowed."""
    admission_timeout: timedelta = _s(10)
    """How long admission may take to answer. Zero or less: no bound."""
    max_step_crashes: Count = 3
    """Deaths of its process charged to a step before it is `FAILED` [S10]."""
    max_job_crashes: Count = 5
    """Deaths of a job actor without a saved group in between before the job is `FAILED` [S10]."""
    max_history: int = Field(default=50, ge=2, le=1_000)
    """Status changes that a job remembers: the first and the latest."""

    @field_validator("admissions")
    @classmethod
    def _names_a_function(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            module, _, function = name.partition(":")
            if not module or not function:
                raise ValueError(f"{name!r} is not of the form 'module:function'")
        return value


class ClusterOptions(BaseModel):
    """What holds for a whole namespace; stored once, later explicit values replace [S15]."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    max_parallel_steps: Count | None = None
    """Step bodies that run at once over all jobs [S5.7]. None: the cluster's CPUs as they come and go."""
    step_lease_timeout: timedelta = _s(30)
    """How long a host may work without hearing from its job actor [S10.2]. Renewed at a third."""
    cleanup_cadence: timedelta = _s(3600)
    """How often retention is applied. Zero or less: never."""
    max_concurrent_cleanup: Count = 4
    """Jobs that are cleaned up at the same time."""
    max_terminal_jobs_per_cleanup: Count = 100
    """Jobs that one round of cleaning up deletes at most."""
    max_concurrent_rehydration: Count = 8
    """Interrupted jobs that are brought back at the same time [S10]."""
    terminal_job_retention: timedelta | None = timedelta(days=7)
    """How long finished jobs are remembered. None: for ever."""
    dead_job_threshold: timedelta = timedelta(hours=1)
    """After which a start that died without a plan is deleted, and captured code that no job points at (that after an
    hour at the earliest)."""

    @property
    def lease_margin(self) -> timedelta:
        """What an observer adds to a lease before it takes its end for granted: a tenth [S10.2]."""
        return self.step_lease_timeout / 10
