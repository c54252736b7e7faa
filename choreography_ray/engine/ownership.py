"""How one learns that an owner in another cluster is gone: by looking at the store for a whole lease [S10.3]."""

from __future__ import annotations

from choreography_ray.core.ownership import OwnerWatch, Verdict, is_elsewhere, sign_of
from choreography_ray.engine.ports import Clock
from choreography_ray.errors import JobNotFound, OwnedElsewhere, StorageUnavailable
from choreography_ray.model import JobId
from choreography_ray.records import JobDocument
from choreography_ray.storage.protocol import JobStorage


async def read_when_free(storage: JobStorage, job_id: JobId, cluster: str, clock: Clock, lease: float) -> JobDocument:
    """The job as stored, once no living process of another cluster owns it: at once where none ever did.

    The fence of what is returned is what a takeover must expect. Raises `OwnedElsewhere` when there is one, and
    `JobNotFound`. Waits as long as the store does not answer.
    """
    watch = OwnerWatch(lease)
    while True:
        asked = clock.instant().now
        try:
            document = await storage.read_job(job_id)
            if document is None:
                raise JobNotFound(job_id)
            if not is_elsewhere(document, cluster):
                return document
            # A store that can be read but not written would silence everybody.
            await storage.next_number("looks")
        except StorageUnavailable:
            watch.missed()
        else:
            match watch.saw(sign_of(document), asked, clock.instant().now):
                case Verdict.ALIVE:
                    assert document.owner is not None
                    raise OwnedElsewhere(job_id, document.owner.cluster)
                case Verdict.SILENT:
                    return document
                case Verdict.UNKNOWN:
                    pass
        await clock.sleep(watch.interval)
