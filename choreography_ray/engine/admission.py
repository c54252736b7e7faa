"""How is it found out whether a job may run? Everybody who has a say is asked, and all must allow [S11].

A start is asked for in the driver, before anything is saved: what is refused leaves nothing. Everything later is asked
for in the job's own process, which goes on without its driver.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from choreography_ray.authoring.result import describe_exception
from choreography_ray.engine.ports import UserCode
from choreography_ray.job import Job, bind_job, is_overridden
from choreography_ray.model import AdmissionMoment, AdmissionQuestion, JobId, Progress
from choreography_ray.options import JobsOptions
from choreography_ray.records import JobDocument

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    """`is_allowed` None: somebody raised or was silent, and nobody refused. `why` is a sentence, empty when allowed."""

    is_allowed: bool | None
    why: str = ""


def is_asked(job_class: type[Job[Any, Any]], options: JobsOptions) -> bool:
    """Whether anybody has a say: without, admission costs nothing."""
    return bool(options.admissions) or is_overridden(job_class, "may_run")


async def ask_admission(
    job: Job[Any, Any], question: AdmissionQuestion, options: JobsOptions, user: UserCode
) -> Answer:
    """Ask the callables of the options in their order, then the job. Takes at most `admission_timeout` in all."""
    seconds = options.admission_timeout.total_seconds()
    timeout = seconds if seconds > 0 else None
    try:
        async with asyncio.timeout(timeout):
            return await _ask_all(job, question, options, user)
    except TimeoutError:
        return Answer(None, f"admission did not answer within admission_timeout ({seconds:g} s)")


async def _ask_all(job: Job[Any, Any], question: AdmissionQuestion, options: JobsOptions, user: UserCode) -> Answer:
    silent = ""
    asked: list[tuple[str, Callable[..., Any], Any]] = [
        (name, partial(_call, name), question) for name in options.admissions
    ]
    if is_overridden(type(job), "may_run"):
        asked.append((f"{type(job).__name__}.may_run", job.may_run, question.moment))
    for name, ask, about in asked:
        try:
            allowed = await user.call(ask, about)
        except Exception as error:  # no refusal, and no permission
            log.warning("admission %s raised", name, exc_info=error)
            described = describe_exception(error)
            silent = silent or f"admission {name} raised {described.error_type}: {described.message}"
            continue
        if allowed is False:
            return Answer(False, f"admission {name} refused")
        if allowed is not True:
            silent = silent or f"admission {name} answered {allowed!r}, which is neither True nor False"
    return Answer(None, silent) if silent else Answer(True)


class AdmissionNotFound(Exception):
    """A callable of `JobsOptions.admissions` that this process cannot import."""


def _call(name: str, question: AdmissionQuestion) -> Any:
    return _callable(name)(question)


def _callable(name: str) -> Callable[[AdmissionQuestion], Any]:
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise AdmissionNotFound(f"{name!r} of JobsOptions.admissions cannot be imported: {error}") from error
    if not callable(found):
        raise AdmissionNotFound(f"{name!r} of JobsOptions.admissions is {type(found).__name__}, which cannot be called")
    return found  # type: ignore[no-any-return]


class Unstarted:
    """What a job can see of itself while it is asked whether it may start: it has an id, and nothing is saved."""

    def __init__(self, job_id: JobId) -> None:
        self.job_id = job_id
        self.progress = Progress()
        self.loop = asyncio.get_running_loop()

    async def write_state(self) -> None:
        """There is no record yet."""
        raise RuntimeError("nothing can be saved before the job is started")


async def ask_to_start(job_class: type[Job[Any, Any]], request: Any, document: JobDocument, user: UserCode) -> Answer:
    """The start's question, of a job that is not saved yet."""
    job = bind_job(job_class, Unstarted(document.job_id), request)
    question = question_of(document, AdmissionMoment.START, request)
    return await ask_admission(job, question, document.options, user)


def question_of(
    document: JobDocument, moment: AdmissionMoment, request: Any, stage: int | None = None
) -> AdmissionQuestion:
    """What is told to those who are asked."""
    return AdmissionQuestion(
        moment=moment,
        job_id=document.job_id,
        type_name=document.type_name,
        labels=document.labels,
        request=request,
        stage=stage,
    )
