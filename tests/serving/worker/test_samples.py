"""What workers measure of their steps, and when they tell it."""

import asyncio
from collections import deque
from dataclasses import replace
from time import monotonic, sleep

from strata.serving.wire import StepSample
from tests.serving.worker.builders import Cluster, run

WHOLE = ()
THREE = (2, 4)


def test_what_was_measured_is_told_once():
    async def timeline():
        async with Cluster(*THREE) as cluster:
            await cluster.said(max_tokens=3)
            b = cluster.workers[1]
            return b.take_samples(), b.take_samples()

    samples, again = run(timeline())
    assert [(s.phase, s.first, s.end, s.units, s.context) for s in samples] == [
        ("prefill", 2, 4, 3, 0.0),
        ("decode", 2, 4, 1, 3.0),
        ("decode", 2, 4, 1, 4.0),
    ]
    assert again == ()


def test_what_is_measured_while_samples_are_taken_is_told_the_next_time():
    async def timeline():
        async with Cluster() as cluster:
            (worker,) = cluster.workers

            class Meanwhile(deque):
                def popleft(self):
                    sample = super().popleft()
                    if sample.context:
                        self.append(replace(sample, context=0.0))
                    return sample

            worker.stage.samples = Meanwhile(StepSample("decode", 0, 6, units, 1.0, 0.1) for units in (1, 2))
            return worker.take_samples(), worker.take_samples(), worker.take_samples()

    assert [[one.units for one in samples] for samples in run(timeline())] == [[1, 2], [1, 2], []]


def test_sequences_decoded_together_are_one_measurement():
    async def timeline():
        async with Cluster() as cluster:
            (worker,) = cluster.workers
            part, step = worker.holder.plans[1].part, worker.holder.plans[1].part.step
            together, deadline_s = [0], monotonic() + 120

            def step_once_all_wait(rows):
                while max(together) < 2 and len(rows) + worker.stage.num_waiting < 4 and monotonic() < deadline_s:
                    sleep(0.001)
                together.append(len(rows))
                return step(rows)

            part.step = step_once_all_wait
            await asyncio.gather(*(cluster.said(request_id=f"r{i}", max_tokens=10) for i in range(4)))
            return worker.take_samples()

    decode = [sample for sample in run(timeline()) if sample.phase == "decode"]
    assert sum(sample.units for sample in decode) == 4 * 9
    # Not three: two and two may take turns, each pair waiting while the other runs.
    assert max(sample.units for sample in decode) >= 2
    assert all(3 <= sample.context <= 11 for sample in decode)


def test_a_replayed_prefill_is_no_measurement():
    async def timeline():
        async with Cluster() as cluster:
            await cluster.said(max_tokens=3, generated=(1, 2))
            return cluster.workers[0].take_samples()

    assert [(sample.phase, sample.units) for sample in run(timeline())] == [("prefill", 3)]  # the prompt
