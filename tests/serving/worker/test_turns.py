"""Turns on the thread that runs layers: what waits together runs together, in its order."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Event

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


class Asker:
    """Puts items into turns, and waits for what comes of them. `unwanted` are left out."""

    def __init__(self, table, executor, most):
        self.table, self.unwanted, self.futures, self.seconds = table, set(), {}, []
        self.turns = Turns(
            table.work,
            kind=lambda item: "letter" if item[0].isalpha() else None,
            whose=lambda item: item[1:] or object(),
            is_wanted=lambda item: item not in self.unwanted,
            most=most,
            executor=executor,
            done=self.done,
        )

    def done(self, batch, results, seconds):
        self.seconds.append(seconds)
        for i, item in enumerate(batch):
            future = self.futures[item].pop(0)
            if isinstance(results, Exception):
                future.set_exception(results)
            else:
                future.set_result(results[i])

    def put(self, *items):
        made = []
        for item in items:
            made.append(asyncio.get_running_loop().create_future())
            self.futures.setdefault(item, []).append(made[-1])
            self.turns.put(item)
        return made


def run(work, *, is_held=False, most=8):
    """Run `work(asker)`; letters are alike, digits go alone."""

    async def inside():
        table = Table(is_held=is_held)
        with ThreadPoolExecutor(1) as executor:
            asker = Asker(table, executor, most)
            try:
                return table.batches, await asyncio.wait_for(work(asker), 120)
            finally:
                table.gate.set()
                asker.turns.close()

    return asyncio.run(inside())


def test_what_waits_while_others_run_goes_together_and_what_goes_alone_keeps_its_place():
    async def timeline(asker):
        first = asker.put("a")
        await asyncio.sleep(0)
        rest = asker.put("b", "1", "c", "2", "d")
        asker.table.gate.set()
        return await asyncio.gather(*first, *rest)

    batches, results = run(timeline, is_held=True)
    assert batches == [["a"], ["b", "c", "d"], ["1"], ["2"]]
    assert results == ["aa", "bb", "11", "cc", "22", "dd"]


def test_what_comes_at_the_same_time_goes_along_and_no_batch_is_larger_than_it_may_be():
    async def timeline(asker):
        return await asyncio.gather(*asker.put(*"abcdefg"))

    batches, _ = run(timeline, most=3)
    assert batches == [["a", "b", "c"], ["d", "e", "f"], ["g"]]


@examples(60)
@given(st.lists(st.sampled_from("ab12"), max_size=12), st.integers(1, 4), st.data())
def test_items_of_one_owner_never_overtake_each_other(kinds, most, data):
    """Found by a hang: the last part of a prompt ran before the parts it follows, beside others that decoded."""
    owners = data.draw(st.lists(st.sampled_from("xyz"), min_size=len(kinds), max_size=len(kinds)))
    items = [kind + owner for kind, owner in zip(kinds, owners, strict=True)]

    async def timeline(asker):
        await asyncio.gather(*asker.put(*items))

    batches, _ = run(timeline, most=most)
    done = [item for batch in batches for item in batch]
    for owner in "xyz":
        assert [item for item in done if item[1] == owner] == [item for item in items if item[1] == owner]


@examples(30)
@given(st.lists(st.sampled_from("abc123"), max_size=12))
def test_everybody_gets_their_own_result(items):
    async def timeline(asker):
        results = await asyncio.gather(*asker.put(*items))
        return results, asker.seconds

    batches, (results, seconds) = run(timeline)
    assert results == [item * 2 for item in items]
    assert all(len(batch) == 1 for batch in batches if batch[0][0].isdigit())
    assert len(seconds) == len(batches)
    assert all(each > 0 for each in seconds)


def test_a_batch_that_fails_fails_all_in_it_and_nobody_else():
    async def timeline(asker):
        together = await asyncio.gather(*asker.put("good", "bad"), return_exceptions=True)
        return together, await asyncio.gather(*asker.put("later"))

    _, (together, later) = run(timeline)
    assert [type(one) for one in together] == [ValueError, ValueError]
    assert later == ["laterlater"]


def test_who_is_not_waited_for_any_more_is_left_out():
    async def timeline(asker):
        first, _gone, last = asker.put("1", "gone", "2")
        _also = asker.put("x")
        asker.unwanted |= {"gone", "x"}
        asker.table.gate.set()
        return await asyncio.gather(first, last)

    batches, results = run(timeline, is_held=True)
    assert batches == [["1"], ["2"]]
    assert results == ["11", "22"]


def test_closing_ends_what_waits():
    async def timeline(asker):
        asker.put("1", "2")
        await asyncio.sleep(0)
        asker.turns.close()
        asker.table.gate.set()
        return len(asker.turns)

    batches, waiting = run(timeline, is_held=True)
    assert (batches in ([], [["1"]]), waiting) == (True, 0)
