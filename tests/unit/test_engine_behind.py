"""Writes that go on while the next one is being made."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from choreography_ray.engine.behind import Behind


class Store:
    """Takes writes when it is told to."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.done: list[int] = []
        self.goes_on = asyncio.Event()

    async def write(self, number: int) -> None:
        self.begun.append(number)
        await self.goes_on.wait()
        if number < 0:
            raise ValueError(number)
        self.done.append(number)


def test_one_write_is_under_way_and_the_next_waits_for_it() -> None:
    async def story() -> None:
        store = Store()
        async with Behind() as behind:
            await behind.put(partial(store.write, 1))
            second = asyncio.create_task(behind.put(partial(store.write, 2)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert store.begun == [1]
            assert not second.done()
            store.goes_on.set()
            await second
            assert 1 in store.done
        assert store.done == [1, 2]

    asyncio.run(story())


@pytest.mark.parametrize("more", [0, 1])
def test_a_write_that_fails_raises_at_the_next_one_or_at_the_end(more: int) -> None:
    async def write(store: Store) -> None:
        async with Behind() as behind:
            await behind.put(partial(store.write, -1))
            for _ in range(more):
                await behind.put(partial(store.write, 1))

    store = Store()
    store.goes_on.set()
    with pytest.raises(ValueError, match="-1"):
        asyncio.run(write(store))
    assert store.done == []


def test_what_went_wrong_first_is_told_and_the_write_under_way_is_not_cut() -> None:
    async def write(store: Store) -> None:
        async with Behind() as behind:
            await behind.put(partial(store.write, 1))
            raise KeyError

    store = Store()
    store.goes_on.set()
    with pytest.raises(KeyError):
        asyncio.run(write(store))
    assert store.done == [1]
