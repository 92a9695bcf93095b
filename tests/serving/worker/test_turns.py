"""Turns on the thread that runs layers: what waits together runs together, in its order."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.serving.worker.turns import Turns
from tests.support.laws import examples


class Table:
    """Counts batches. `gate` holds the first one until it is set."""

    def __init__(self, *, is_held=False):
        self.batches, self.gate = [], Event()
        if not is_held:
            self.gate.set()

    def work(self, items):
        assert self.gate.wait(30)
        self.batches.append(items)
        if "bad" in items:
            raise ValueError("bad")
        return [item * 2 for item in items]


def run(work, *, is_held=False):
    """Run `work(turns, table)`; letters are alike, digits go alone."""

    async def inside():
        table = Table(is_held=is_held)
        with ThreadPoolExecutor(1) as executor:
            turns = Turns(table.work, kind=lambda item: "letter" if item.isalpha() else None, executor=executor)
            try:
                return table.batches, await asyncio.wait_for(work(turns, table), 120)
            finally:
                table.gate.set()
                await turns.close()

    return asyncio.run(inside())


async def begun(turns, table, *items):
    """Start all, the first of which is running when this returns."""
    tasks = [asyncio.create_task(turns.take(item)) for item in items]
    for _ in range(3):
        await asyncio.sleep(0)
    table.gate.set()
    return tasks


def test_what_waits_while_others_run_goes_together_and_what_goes_alone_keeps_its_place():
    async def timeline(turns, table):
        first = await begun(turns, table, "a")
        table.gate.clear()
        rest = await begun(turns, table, "b", "1", "c", "2", "d")
        return await asyncio.gather(*first, *rest)

    batches, results = run(timeline, is_held=True)
    assert [one for batch in batches for one in batch if one.isdigit()] == ["1", "2"]
    assert sorted(one for batch in batches for one in batch) == sorted("ab1c2d")
    assert ["b", "c", "d"] in batches
    assert results == ["aa", "bb", "11", "cc", "22", "dd"]


@examples(30)
@given(st.lists(st.sampled_from("abc123"), max_size=12))
def test_everybody_gets_their_own_result(items):
    async def timeline(turns, _table):
        return await asyncio.gather(*(turns.take(item) for item in items))

    batches, results = run(timeline)
    assert results == [item * 2 for item in items]
    assert all(len(batch) == 1 for batch in batches if batch[0].isdigit())


def test_a_batch_that_fails_fails_all_in_it_and_nobody_else():
    async def timeline(turns, _table):
        together = await asyncio.gather(turns.take("good"), turns.take("bad"), return_exceptions=True)
        return together, await turns.take("later")

    _, (together, later) = run(timeline)
    assert [type(one) for one in together] == [ValueError, ValueError]
    assert later == "laterlater"


def test_who_is_not_waited_for_any_more_is_left_out():
    async def timeline(turns, table):
        tasks = [asyncio.create_task(turns.take(item)) for item in ("1", "gone", "2")]
        await asyncio.sleep(0)
        tasks[1].cancel()
        table.gate.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    batches, results = run(timeline, is_held=True)
    assert batches == [["1"], ["2"]]
    assert isinstance(results[1], asyncio.CancelledError)


def test_closing_ends_what_waits():
    async def timeline(turns, table):
        tasks = [asyncio.create_task(turns.take(item)) for item in ("1", "2")]
        for _ in range(3):
            await asyncio.sleep(0)
        closing = asyncio.create_task(turns.close())
        table.gate.set()
        await closing
        with pytest.raises(asyncio.CancelledError):
            await tasks[1]

    batches, _ = run(timeline, is_held=True)
    assert ["2"] not in batches
