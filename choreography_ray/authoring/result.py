"""What does an attempt report: a value, a failure, or that it was stopped?"""

from __future__ import annotations

import reprlib
import traceback
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, cast

from typing_extensions import TypeVar

from choreography_ray.model import MAX_MESSAGE, MAX_TRACEBACK, AttemptRecord

T_co = TypeVar("T_co", covariant=True, default=Any)
V = TypeVar("V")


class ResultKind(StrEnum):
    """How an attempt ended."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


@dataclass(frozen=True, slots=True, repr=False)
class JobStepResult(Generic[T_co]):
    """What an attempt reports. Returned from `perform_step`, and given to the job's hooks.

    `value` is the result of a success, and of any other the partial result, if there is one. `error` is there
    exactly when `is_failure`; its number, times and place are filled in once the host knows them.
    """

    kind: ResultKind
    value: T_co
    error: AttemptRecord | None = None

    @staticmethod
    def succeeded(value: V) -> JobStepResult[V]:
        """The work is done, with this value."""
        return JobStepResult(ResultKind.SUCCEEDED, value)

    @staticmethod
    def failed(error: str | BaseException | AttemptRecord, partial: Any = None) -> JobStepResult[Any]:
        """The attempt failed; `partial` is what it achieved all the same."""
        return JobStepResult(ResultKind.FAILED, partial, _record(error))

    @staticmethod
    def cancelled(partial: Any = None) -> JobStepResult[Any]:
        """The step was stopped before it was done; `partial` is what it achieved until then."""
        return JobStepResult(ResultKind.CANCELLED, partial)

    @property
    def is_success(self) -> bool:
        """True when the work is done."""
        return self.kind is ResultKind.SUCCEEDED

    @property
    def is_failure(self) -> bool:
        """True when the attempt failed."""
        return self.kind is ResultKind.FAILED

    @property
    def is_cancelled(self) -> bool:
        """True when the step was stopped."""
        return self.kind is ResultKind.CANCELLED

    def __repr__(self) -> str:
        match self.kind:
            case ResultKind.SUCCEEDED:
                return f"JobStepResult.succeeded({reprlib.repr(self.value)})"
            case ResultKind.FAILED:
                partial = "" if self.value is None else f", partial={reprlib.repr(self.value)}"
                return f"JobStepResult.failed({_sentence(self.error)!r}{partial})"
            case ResultKind.CANCELLED:
                return f"JobStepResult.cancelled({'' if self.value is None else reprlib.repr(self.value)})"


def plain_value(returned: Any) -> Any:
    """What a body or `create_cancelled_result` returned, without the result around it."""
    if isinstance(returned, JobStepResult):
        return cast("JobStepResult[Any]", returned).value  # type: ignore[redundant-cast]  # not to pyright
    return returned


def _record(error: str | BaseException | AttemptRecord) -> AttemptRecord:
    if isinstance(error, AttemptRecord):
        return error
    if isinstance(error, str):
        return AttemptRecord(attempt=0, message=error[:MAX_MESSAGE])
    return describe_exception(error)


def describe_exception(error: BaseException, attempt: int = 0) -> AttemptRecord:
    """What is kept of an exception: type, message and traceback, bounded. Never raises, whatever `str(error)` does."""
    cls = type(error)
    name = cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    try:
        message = str(error)
    except Exception as worse:  # noqa: BLE001 - it is the user's code that raises
        message = f"<str() of the error raised {type(worse).__name__}>"
    try:
        lines = "".join(traceback.format_exception(error))
    except Exception as worse:  # noqa: BLE001 - it is the user's code that raises
        lines = f"<the traceback could not be formatted: {type(worse).__name__}>"
    shown = lines if len(lines) <= MAX_TRACEBACK else "[...]\n" + lines[-MAX_TRACEBACK:]
    return AttemptRecord(attempt=attempt, error_type=name, message=message[:MAX_MESSAGE], traceback=shown)


def _sentence(error: AttemptRecord | None) -> str:
    if error is None:
        return ""
    message = error.message if len(error.message) <= 200 else error.message[:200] + "..."
    return f"{error.error_type}: {message}" if error.error_type else message
