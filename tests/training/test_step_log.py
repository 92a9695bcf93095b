"""Step times of training logs: what is read, and which steps are steady."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import BadFile
from strata.training.step_log import StepLog, steady_steps, warm_up_steps
from tests.support.laws import examples

MEGATRON = (
    " [2025-03-01 10:00:00] iteration {:8d}/     100 | consumed samples: {:12d} | "
    "elapsed time per iteration (ms): {:.1f} | throughput per GPU (TFLOP/s/GPU): 400.1 | "
    "learning rate: 3.0E-05 | global batch size:    64 |\n"
)


def megatron(*seconds: float) -> str:
    lines = [MEGATRON.format(step, 64 * step, 1000 * each) for step, each in enumerate(seconds, 1)]
    return "using world size: 64\n" + "[rank0] NCCL version 2.21.5\n".join(lines)


def csv(*seconds: object) -> str:
    return "step,seconds\n" + "".join(f"{step},{each}\n" for step, each in enumerate(seconds))


@pytest.mark.parametrize("form", [megatron, csv])
def test_the_median_of_the_steps_after_the_warm_up_counts(form):
    text = form(30.0, 9.0, 2.5, 2.4, 2.0, 2.02, 1.98, 2.0, 2.01, 1.99, 7.0, 2.0)
    assert steady_steps("a.log", text) == StepLog(step_s=2.0, warm_up=4, steady=8)


def test_the_first_three_steps_are_left_out_always():
    assert warm_up_steps([2.0] * 8) == 3


@pytest.mark.parametrize(
    ("seconds", "steady"),
    [((30.0, 9.0, 2.5), 0), ((2.0,) * 7, 0), (tuple(20 * 0.8**n for n in range(30)), 0)],
)
def test_a_log_of_warm_up_only_is_refused_where_it_ends(seconds, steady):
    with pytest.raises(BadFile) as caught:
        steady_steps("a.csv", csv(*seconds))
    (line,) = map(str, caught.value.faults)
    found = f"{steady} of {len(seconds)} are steady, 5 are needed"
    assert line == f"a.csv:{len(seconds) + 1}:1: the steps are warm-up only: {found}"


@pytest.mark.parametrize("text", ["", "epoch 3 loss 2.5 took 8 s\n", "time,loss\n1,2\n"])
def test_a_log_of_another_form_is_told_what_is_read(text):
    with pytest.raises(BadFile, match="no step times") as caught:
        steady_steps("a.log", text)
    assert "elapsed time per iteration (ms)" in caught.value.hint
    assert "step,seconds" in caught.value.hint


def test_every_line_without_a_time_is_named():
    with pytest.raises(BadFile) as caught:
        steady_steps("a.csv", csv(2.0, "nan", 2.0, "-1", "soon", "", "1e999"))
    assert [fault.line for fault in caught.value.faults] == [3, 5, 6, 7, 8]


@examples(50)
@given(warm_up=st.lists(st.floats(3.0, 100.0), max_size=6), count=st.integers(12, 40), step_s=st.floats(0.01, 2.0))
def test_slow_first_steps_do_not_change_the_median(warm_up, count, step_s):
    log = steady_steps("a.csv", csv(*warm_up, *[step_s] * count))
    assert log.step_s == step_s
    assert log.warm_up == max(3, len(warm_up))
