"""Step times of training logs: what is read, and which steps are steady."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import BadFile
from strata.training.step_log import StepLog, steady_steps, warm_up_steps
from tests.support.laws import examples

TOKENS = 4096.0
"""Of a step, over its devices."""
STEADY = (30.0, 9.0, 2.5, 2.4, 2.0, 2.02, 1.98, 2.0, 2.01, 1.99, 7.0, 2.0)


def megatron(*seconds: float) -> str:
    """As `training_log` of Megatron-LM's training.py prints them."""
    lines = [
        f" [2025-03-01 10:00:00.123456] iteration {step:8d}/{100:8d} | consumed samples: {64 * step:12d} | "
        f"elapsed time per iteration (ms): {1000 * each:.1f} | throughput per GPU (TFLOP/s/GPU): 400.1 | "
        f"learning rate: {3e-5:.6E} | global batch size: {64:5d} |\n"
        for step, each in enumerate(seconds, 1)
    ]
    return "using world size: 64\n" + "[rank0] NCCL version 2.21.5\n".join(lines)


def nanotron(*seconds: float) -> str:
    """As `LoggerWriter` and the formatter of nanotron's logging/base.py print them."""

    def human(value: float) -> str:
        short = f"{float(f'{value:.3g}') / 1000:f}" if value >= 1000 else f"{float(f'{value:.3g}'):f}"
        return short.rstrip("0").rstrip(".") + ("K" if value >= 1000 else "")

    return "".join(
        f"\033[2;3m01/28 09:16:55 [INFO|DP=0|PP=1]\033[0m: iteration: {step} / 100 | consumed_tokens: 1.23M | "
        f"elapsed_time_per_iteration_ms: {human(1000 * each)} | tokens_per_sec: 110K | lm_loss: 11.2\n"
        for step, each in enumerate(seconds, 1)
    )


def torchtitan(*seconds: float) -> str:
    """As `MetricsProcessor.log` of torchtitan's components/metrics.py prints them, in colours."""
    lines = [
        f"[titan] 2025-06-10 12:00:00,123 - root - INFO - \033[31mstep: {step:2}  \033[32mloss: {9.5:7.4f}  "
        f"\033[38;2;180;60;0mgrad_norm: {1.25:7.4f}  \033[36mmemory: {40.5:5.2f}GiB({51.2:.2f}%)  "
        f"\033[34mtps: {TOKENS / each:,}  \033[36mtflops: {390.1:,.2f}  \033[35mmfu: {39.4:.2f}%\033[39m\n"
        for step, each in enumerate(seconds, 1)
    ]
    return "validate step: 10  loss:  9.1  memory: 40.5GiB(51.2%)  tps: 1\n".join(lines)


def trainer(*seconds: float) -> str:
    """As the Hugging Face Trainer's bar, tqdm's `format_meter`, prints them beside its losses and other bars."""

    def rate(each: float) -> str:
        return f"{each:.5f}s/it" if each > 1 else f"{1 / each:.5f}it/s"

    bars = [
        f"\r {step:3d}%|██▌       | {step}/100 [00:{step:02d}<01:10, {rate(each):>9}]"
        for step, each in enumerate(seconds, 1)
    ]
    shards = "Loading checkpoint shards: 100%|██████████| 4/4 [00:05<00:00,  1.25s/it]\n"
    before = f"{shards}  0%|          | 0/100 [00:00<?, ?it/s]"
    losses = "{'loss': 0.3113, 'grad_norm': 3.1, 'learning_rate': 1e-05, 'epoch': 1.6}\n"
    return before + f"\n{losses}  8%|▊         | 1/13 [00:00<00:02,  5.00it/s]".join(bars)


def ours(*seconds: float) -> str:
    return "rank 0 stage 0\n" + "".join(f"step {n} loss 4.1 time {each:.6f}s\n" for n, each in enumerate(seconds))


def reported(*seconds: float) -> str:
    lines = [json.dumps({"step": n, "loss": 4.1, "step_time_s": each}) for n, each in enumerate(seconds, 1)]
    return "\n".join([*lines, json.dumps({"step": 12, "checkpoint": "step-000000012"})])


def csv(*seconds: object) -> str:
    return "step,seconds\n" + "".join(f"{step},{each}\n" for step, each in enumerate(seconds))


def read(path: str, text: str) -> StepLog:
    return steady_steps(path, text, tokens_per_device=TOKENS)


FORMS = [megatron, nanotron, torchtitan, trainer, ours, reported, csv]


@pytest.mark.parametrize("form", FORMS)
def test_the_median_of_the_steps_after_the_warm_up_counts(form):
    log = read("a.log", form(*STEADY))
    assert (log.warm_up, log.steady) == (4, 8)
    assert log.step_s == pytest.approx(2.0, rel=1e-3)


@pytest.mark.parametrize("form", FORMS)
def test_a_log_of_any_form_that_ends_in_the_warm_up_is_refused(form):
    with pytest.raises(BadFile, match="the steps are warm-up only: 0 of 4 are steady"):
        read("a.log", form(30.0, 9.0, 2.5, 2.4))


def test_a_mean_with_the_warm_up_in_it_is_no_step_time():
    text = "{'train_runtime': 44.055, 'train_samples_per_second': 435.819, 'train_steps_per_second': 6.81}\n"
    with pytest.raises(BadFile, match="no step times; train_runtime is a mean with the warm-up in it"):
        read("a.log", text)


def test_the_first_three_steps_are_left_out_always():
    assert warm_up_steps([2.0] * 8) == 3


@pytest.mark.parametrize(
    ("seconds", "steady"),
    [((30.0, 9.0, 2.5), 0), ((2.0,) * 7, 0), (tuple(20 * 0.8**n for n in range(30)), 0)],
)
def test_a_log_of_warm_up_only_is_refused_where_it_ends(seconds, steady):
    with pytest.raises(BadFile) as caught:
        read("a.csv", csv(*seconds))
    (line,) = map(str, caught.value.faults)
    found = f"{steady} of {len(seconds)} are steady, 5 are needed"
    assert line == f"a.csv:{len(seconds) + 1}:1: the steps are warm-up only: {found}"


@pytest.mark.parametrize("text", ["", "epoch 3 loss 2.5 took 8 s\n", "time,loss\n1,2\n"])
def test_a_log_of_another_form_is_told_what_is_read(text):
    with pytest.raises(BadFile, match="no step times") as caught:
        read("a.log", text)
    assert "Megatron-LM" in caught.value.hint
    assert "step,seconds" in caught.value.hint


def test_every_line_without_a_time_is_named():
    with pytest.raises(BadFile) as caught:
        read("a.csv", csv(2.0, "nan", 2.0, "-1", "soon", "", "1e999"))
    assert [fault.line for fault in caught.value.faults] == [3, 5, 6, 7, 8]


@examples(50)
@given(warm_up=st.lists(st.floats(3.0, 100.0), max_size=6), count=st.integers(12, 40), step_s=st.floats(0.01, 2.0))
def test_slow_first_steps_do_not_change_the_median(warm_up, count, step_s):
    log = read("a.csv", csv(*warm_up, *[step_s] * count))
    assert log.step_s == step_s
    assert log.warm_up == max(3, len(warm_up))
