"""How large may what is stored be? Every store gives the same answer, so a test on one holds for others [S12.4]."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from choreography_ray.errors import TooLarge
from choreography_ray.model import NEARLY_FULL
from choreography_ray.records import JobDocument, Payload

MAX_DOCUMENT_BYTES = 16 * 1024 * 1024
"""What MongoDB takes for one document."""
MAX_PAYLOAD_BYTES = 15 * 1024 * 1024
"""One value; the rest of a document is left for what surrounds it."""
MAX_LABELS_BYTES = 64 * 1024
"""Names and values of all labels of a job: by them jobs are found, and lists of jobs show them."""
MAX_RUNTIME_ENV_BYTES = 256 * 1024
"""What is stored of a job's runtime_env."""
PART_BYTES = 8 * 1024 * 1024
"""Lists that may be of any size are split into documents of about this size."""

_HOLLOW = (type(None), bool, int, float)
Item = TypeVar("Item")


def payload_size(payload: Payload) -> int:
    """Bytes of a payload as a document of its own."""
    if isinstance(payload, _HOLLOW):
        return 16
    if isinstance(payload, str) and len(payload) < 1024:
        return 16 + len(payload) * 4
    import bson  # here: a host whose values are small starts without it

    return len(bson.encode({"": payload}))


def checked_size(what: str, payload: Payload) -> int:
    """Its size in bytes. Raises `TooLarge` that names `what` when no document could hold it."""
    return check_size(what, payload_size(payload), MAX_PAYLOAD_BYTES)


def check_new_job(document: JobDocument) -> None:
    """Raise `TooLarge` for what of a new job would not fit, or would take the place of what else its document holds."""
    job_id, labels = document.job_id, document.labels
    size = sum(len(text.encode("utf-8", "backslashreplace")) for label in labels.items() for text in label)
    check_size(f"job {job_id!r}: labels", size, MAX_LABELS_BYTES)
    check_size(f"job {job_id!r}: runtime_env", payload_size(document.runtime_env), MAX_RUNTIME_ENV_BYTES)
    check_job(job_id, payload_size(document.request), document.state)


def check_job(job_id: str, request_bytes: int, state: Payload) -> int:
    """What both take, in bytes. Raises `TooLarge` when a job's document could not hold the state beside its request."""
    check_size(f"job {job_id!r}: request", request_bytes, MAX_PAYLOAD_BYTES)
    what = f"job {job_id!r}: state (beside a request of {request_bytes:,} bytes)"
    return request_bytes + check_size(what, payload_size(state), MAX_PAYLOAD_BYTES - request_bytes)


def nearness(job_bytes: int) -> str:
    """What there is to tell of how near a job's request and state come to what they may take; empty: they do not."""
    is_near = job_bytes > NEARLY_FULL * MAX_PAYLOAD_BYTES
    return f"{job_bytes:,} of the {MAX_PAYLOAD_BYTES:,} bytes that they may" if is_near else ""


def check_size(what: str, size: int, limit: int = MAX_DOCUMENT_BYTES) -> int:
    """Returns the size; raises `TooLarge` when it is over the limit."""
    if size > limit:
        raise TooLarge(what, size, limit)
    return size


def are_small(payloads: Iterable[Payload]) -> bool:
    """Whether they fit into one part together, with as much again around them: then none of them is too large."""
    counted = [payload for payload in payloads if not isinstance(payload, _HOLLOW)]
    return not counted or payload_size(counted) <= PART_BYTES // 2


def parts(items: Sequence[Item], size_of: Callable[[Item], int]) -> Iterator[Sequence[Item]]:
    """Split items, in order, into lists of at most `PART_BYTES` where their sizes allow; at least one."""
    part: list[Item] = []
    filled = 0
    for item in items:
        size = size_of(item)
        if part and filled + size > PART_BYTES:
            yield part
            part, filled = [], 0
        part.append(item)
        filled += size
    yield part
