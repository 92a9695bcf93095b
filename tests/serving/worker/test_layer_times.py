"""What a block takes, measured on the layers that workers run."""

import time
from dataclasses import replace

import pytest

from strata.errors import UsageError
from strata.serving.worker.holder import ROWS
from strata.serving.worker.shape import Shape

SHAPE = Shape(num_layers=5, hidden_size=32, num_heads=4, max_positions=96, seed=1)

pytestmark = pytest.mark.real("torch")


def measured(shape=SHAPE, *, memory_bytes=1e9, maker=None):
    from strata.serving.worker.layer_times import measure_block
    from strata.serving.worker.model import LayerMaker, use_one_thread

    maker = maker or LayerMaker(shape)
    return measure_block(maker, shape.hosted, memory_bytes=memory_bytes, in_thread=use_one_thread)


def test_prompts_and_steps_of_a_block_within_the_models_positions_are_timed():
    samples = measured()
    kinds = {(each.phase, each.units) for each in samples}
    assert kinds == {("prefill", 16), ("decode", 1), ("decode", ROWS)}  # 128 tokens would be more than 96
    assert {(each.first, each.end, each.context) for each in samples} == {(1, 2, 0.0)}
    assert all(each.seconds > 0 for each in samples)


def test_what_makes_a_block_slow_is_in_its_times():
    from strata.serving.worker.model import LayerMaker

    class Slow(LayerMaker):
        def part(self, first, end, layers):
            part = super().part(first, end, layers)

            class Sleeping(type(part)):
                def lump(self, rows):
                    time.sleep(0.05)
                    return super().lump(rows)

            return Sleeping(part.shape, first, end, layers, part.device)

    assert all(each.seconds >= 0.05 for each in measured(maker=Slow(SHAPE)) if each.phase == "decode")


def test_a_device_that_has_less_left_than_was_promised_is_said_to_be_full():
    import torch

    from strata.serving.worker.model import LayerMaker

    class Full(LayerMaker):
        def layer(self, number):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    with pytest.raises(UsageError, match=r"a block of tiny has no room on this device: CUDA out of memory$"):
        measured(maker=Full(SHAPE))


def test_a_block_without_room_and_a_model_that_nobody_cuts_are_not_measured():
    assert measured(memory_bytes=SHAPE.hosted.weight_bytes(1, 2) - 1) == ()
    assert measured(replace(SHAPE, num_layers=2)) == ()
