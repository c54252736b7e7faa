"""User code that is given up holds up nothing that comes after it [S14.3]."""

from __future__ import annotations

import asyncio
import threading

import pytest

from choreography_ray.actors.threads import ThreadedUserCode


async def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def test_an_async_hook_that_blocks_its_thread_holds_up_no_later_one() -> None:
    """Every later `async def` of the job ran into its own time limit, on a loop that no longer turned."""
    release = threading.Event()

    async def block() -> None:
        release.wait()

    async def story() -> None:
        user = ThreadedUserCode()
        first = await user.call(_loop)
        with pytest.raises(TimeoutError):
            await user.call(block, timeout=0.05)
        try:
            assert await user.call(_loop, timeout=30) is not first
        finally:
            release.set()

    asyncio.run(story())


def test_a_loop_that_still_turns_is_kept() -> None:
    """What a job's hooks made on it, a session or a client, belongs to it."""

    async def story() -> None:
        user = ThreadedUserCode()
        first = await user.call(_loop)
        with pytest.raises(TimeoutError):
            await user.call(asyncio.sleep, 60, timeout=0.05)
        assert await user.call(_loop) is first

    asyncio.run(story())
