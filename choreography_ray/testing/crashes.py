"""Does a story of a job come to the same end wherever a process dies in it? It is told once for each write [S17]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from choreography_ray.testing.faults import Cut
from choreography_ray.testing.virtual import VirtualCluster

Story = Callable[[VirtualCluster], Any]


def crash_at_every_write(story: Story, **cluster: Any) -> int:
    """Tell the story once as it is, then again and again: each time one process dies at one write after the first
    start, job actors and hosts, before and after the write. The story starts its jobs and asserts what must hold.

    `cluster` goes to each `VirtualCluster`. Returns how many crashes there were. What the story raises is raised, with
    a note of where the process died.
    """
    with VirtualCluster(**cluster) as calm:
        story(calm)
        counts = {"job actor": calm.job_writes - calm.writes_of_start, "host": calm.host_writes}
    crashes = 0
    for who, writes in counts.items():
        for n in range(1, writes + 1):
            for cut in (Cut.BEFORE, Cut.AFTER):
                with VirtualCluster(**cluster) as struck:
                    if who == "host":
                        struck.crash_host_at_write(n, cut)
                    else:
                        struck.crash_job_after_start(n, cut)
                    try:
                        story(struck)
                    except BaseException as error:
                        error.add_note(f"the {who} died {cut} its write {n}")
                        raise
                    crashes += 1
    return crashes
