"""Requests: rates and spreads come back, time and order are kept, and traces are read strictly."""

import gzip
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import BadFile, UsageError
from strata.workload.request_trace import MAX_FAULTS, read_trace
from strata.workload.requests import (
    CONVERSATION,
    LENGTHS,
    Length,
    Request,
    SystemPrompts,
    arrivals,
    requests,
    until,
)

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def rng(seed=0):
    return np.random.default_rng(seed)


def gaps(n, **how):
    return np.diff([0.0, *islice(arrivals(rng(), 10.0, **how), n)])


@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0, 3.0])
def test_gaps_have_the_rate_and_the_coefficient_of_variation_asked_for(cv):
    found = gaps(40_000, cv=cv)
    assert found.mean() == pytest.approx(0.1, rel=0.05)
    assert found.std() / found.mean() == pytest.approx(cv, rel=0.05, abs=1e-9)


def test_a_swinging_rate_is_highest_a_quarter_into_the_period_and_right_on_average():
    times = np.array(list(islice(arrivals(rng(), 100.0, swing=0.8, period_s=100.0), 20_000)))
    counts, _ = np.histogram(times % 100.0, bins=4, range=(0, 100.0))
    # The mean of 1 + 0.8 sin over the quarter in the middle of which it is highest, and the opposite one.
    counts8, _ = np.histogram(times % 100.0, bins=8, range=(0, 100.0))
    edge = 0.8 * np.sqrt(2) * 2 / np.pi
    assert (counts8[1] + counts8[2]) / len(times) * 4 == pytest.approx(1 + edge, rel=0.05)
    assert (counts8[5] + counts8[6]) / len(times) * 4 == pytest.approx(1 - edge, rel=0.1)
    assert len(times) / times[-1] == pytest.approx(100.0, rel=0.05)
    assert counts[0] + counts[1] > counts[2] + counts[3]


@given(
    st.floats(0.01, 1e4), st.floats(0, 5), st.sampled_from([0.0, 0.3, 0.99]), st.integers(0, 2**32 - 1)
)  # fmt: skip
def test_arrivals_never_go_back_in_time_and_repeat_by_seed(rate, cv, swing, seed):
    first, again = (list(islice(arrivals(rng(seed), rate, cv=cv, swing=swing), 50)) for _ in range(2))
    assert first == again
    assert first[0] >= 0
    assert all(a <= b for a, b in pairwise(first))


@pytest.mark.parametrize("wrong", [{"rate_per_s": 0.0}, {"cv": -1.0}, {"swing": 1.0}, {"period_s": 0.0}])
def test_figures_without_meaning_are_refused(wrong):
    with pytest.raises(ValueError, match="rate"):
        next(arrivals(rng(), **({"rate_per_s": 1.0} | wrong)))


@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_have_the_quantiles_counted_in_the_trace(name):
    wanted = {"conversation": ((1020, 2734.5), (129, 424)), "coding": ((1469, 5187.6), (13, 55))}[name]
    for length, quantiles in zip((LENGTHS[name].prompt, LENGTHS[name].output), wanted, strict=True):
        drawn = length.sample(rng(), 100_000)
        np.testing.assert_allclose(np.quantile(drawn, [0.5, 0.9]), quantiles, rtol=0.02)
        assert drawn.min() >= 1
        assert drawn.max() <= length.longest


def test_a_length_around_a_mean_has_that_mean():
    length = Length.around(500.0, like=CONVERSATION.output)
    assert length.sample(rng(), 200_000).mean() == pytest.approx(500.0, rel=0.03)


def test_a_system_prompt_comes_before_the_prompt_and_its_blocks_are_its_own():
    prompts = SystemPrompts(3, tokens=100, block_tokens=16)
    found = list(islice(requests(rng(), arrivals(rng(), 1.0), CONVERSATION, prompts=prompts), 200))
    kinds = {request.blocks for request in found}
    assert len(kinds) == 3
    assert all(len(blocks) == 6 for blocks in kinds)
    assert len({block for blocks in kinds for block in blocks}) == 18
    assert min(request.prompt_tokens for request in found) > 100


def test_requests_end_with_their_times_and_before_the_end_asked_for():
    assert len(list(requests(rng(), iter([0.0, 1.0, 2.0]), CONVERSATION))) == 3
    assert [r.at_s for r in until(requests(rng(), iter([0.0, 1.0, 2.0]), CONVERSATION), 2.0)] == [0.0, 1.0]


def write(tmp_path, text, name="trace.csv"):
    path = tmp_path / name
    data = text.encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


@pytest.mark.parametrize("name", ["trace.csv", "trace.csv.gz"])
def test_an_azure_trace_begins_at_0_and_can_be_sped_up(tmp_path, name):
    rows = "2023-11-16 18:17:03.9799600,4808,10\r\n2023-11-16 18:17:04.0319600,3180,8"
    trace = read_trace(write(tmp_path, AZURE + rows, name))
    assert (trace.num_requests, trace.prompt_tokens, trace.output_tokens) == (2, 7988, 18)
    first, second = trace.requests(speed=2.0)
    assert first == Request(0.0, 4808, 10)
    assert second.at_s == pytest.approx(0.026)


def test_dates_with_a_time_zone_are_read():
    # As in Azure's trace of 2024.
    from strata.workload.request_trace import FORMATS

    assert FORMATS[0].seconds("2024-05-12 00:00:01.5+00:00") - FORMATS[0].seconds("2024-05-12 00:00:00") == 1.5


def test_failed_requests_of_burstgpt_are_counted_and_left_out(tmp_path):
    rows = "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,0,0,0,API log\n46.5,GPT-4,7,3,10,API log\n"
    trace = read_trace(write(tmp_path, BURST + rows))
    assert trace.num_failed == 1
    assert list(trace.requests()) == [Request(0.0, 472, 18), Request(41.5, 7, 3)]


@pytest.mark.parametrize(
    ("row", "place", "says"),
    [
        pytest.param("yesterday,1,2", ":3:1: TIMESTAMP", "not a time", id="time"),
        pytest.param("2023-11-16 18:17:02,1,2", ":3:1: TIMESTAMP", "before the line above", id="order"),
        pytest.param("2023-11-16 18:17:04,many,2", ":3:21: ContextTokens", "'many'", id="prompt"),
        pytest.param("2023-11-16 18:17:04,0,2", ":3:21: ContextTokens", "1 or more", id="empty-prompt"),
        pytest.param("2023-11-16 18:17:04,1,-2", ":3:23: GeneratedTokens", "0 or more", id="output"),
        pytest.param("2023-11-16 18:17:04,1", ":3:1", "2 values", id="short"),
        pytest.param("", ":3:1", "1 values", id="empty-line"),
    ],
)
def test_a_fault_names_its_line_and_column(tmp_path, row, place, says):
    path = write(tmp_path, AZURE + f"2023-11-16 18:17:03,5,6\n{row}\n")
    with pytest.raises(BadFile, match=says) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}{place}: ")


def test_no_more_than_some_faults_are_told(tmp_path):
    with pytest.raises(BadFile) as caught:
        read_trace(write(tmp_path, AZURE + "x,1,2\n" * 1000))
    assert len(caught.value.faults) == MAX_FAULTS


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("a,b,c\n1,2,3\n", "does not name the columns", id="header"),
        pytest.param("TIMESTAMP,ContextTokens\n", "'GeneratedTokens'", id="column"),
        pytest.param(AZURE, "none of its requests", id="nothing"),
        pytest.param("", "does not name the columns", id="empty"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path, text, says):
    with pytest.raises(BadFile, match=says):
        read_trace(write(tmp_path, text))


def test_a_trace_that_cannot_be_opened_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        read_trace(tmp_path / "none.csv")
    with pytest.raises(UsageError, match="directory"):
        read_trace(tmp_path)
    broken = tmp_path / "trace.csv.gz"
    broken.write_bytes(b"not gzip")
    with pytest.raises(UsageError, match="gzip"):
        read_trace(broken)
    binary = tmp_path / "trace.csv"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadFile, match="UTF-8"):
        read_trace(binary)
