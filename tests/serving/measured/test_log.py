"""Logs of requests: both forms, and what is refused where."""

from __future__ import annotations

import json

import numpy as np
import pytest

from strata.errors import BadFile, UsageError
from strata.serving.measured.log import LEAST, read_log, write_log
from tests.serving.measured.made_up import job, log_of, pipeline, requests

HEAD = "at_s,prompt_tokens,output_tokens,ttft_s,latency_s\n"
ROW = "0.5,100,20,0.1,1.1\n"


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "requests.csv"
        path.write_text(text)
        return str(path)

    return write


def vllm(**other):
    number = LEAST
    columns = {
        "start_times": [7.0 + i for i in range(number)],
        "input_lens": [100] * number,
        "output_lens": [3] * number,
        "ttfts": [0.2] * number,
        "itls": [[0.1, 0.3]] * number,
        "errors": [""] * number,
    }
    return json.dumps(columns | other)


def test_what_is_written_is_read(tmp_path, written):
    asked = job()
    log = log_of(pipeline(tmp_path, asked), asked, requests(LEAST))
    write_log(tmp_path / "again.csv", log)
    again = read_log(str(tmp_path / "again.csv"))
    assert [(r.prompt_tokens, r.output_tokens) for r in again.requests] == [r[1:3] for r in log.requests]
    np.testing.assert_allclose(again.latency_s, log.latency_s, atol=1e-6)


def test_requests_are_in_the_order_of_their_coming_from_0_on(written):
    rows = [f"{i},{i},2,0.1,0.2\n" for i in range(LEAST, 0, -1)]
    log = read_log(written(HEAD + "".join(rows)))
    assert [request.at_s for request in log.requests] == list(range(LEAST))
    assert log.requests[0].prompt_tokens == 1


def test_what_vllms_load_generator_saves_is_read(written):
    log = read_log(written(vllm()))
    assert log.requests[1].at_s == 1.0
    assert (log.ttft_s[0], log.latency_s[0]) == (0.2, pytest.approx(0.6))
    failed = vllm(errors=["", "refused", *[""] * (LEAST - 2)])
    with pytest.raises(UsageError, match=f"{LEAST - 1} requests are too few"):
        read_log(written(failed))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no column 'at_s'"),
        ("at_s,ttft_s\n", "1:1: no column 'prompt_tokens'"),
        (HEAD + ROW + "1,x,20,0.1,1.1\n", "3:1: prompt_tokens is nan"),
        (HEAD + "1,0,20,0.1,1.1\n", "prompt_tokens is 0, not a number from 1 on"),
        (HEAD + "1,1.5,20,0.1,1.1\n", "prompt_tokens is 1.5, not a whole number"),
        (HEAD + "1,100,20,-0.1,1.1\n", "ttft_s is -0.1"),
        (HEAD + "1,100,20,inf,1.1\n", "ttft_s is inf"),
        (HEAD + "1,100,20,2,1\n", "the first token comes after 2 s, and the last after 1 s"),
        (HEAD + "1,100\n", "output_tokens is nan"),
        ("{", "not JSON"),
        ("{}", "no list 'errors'"),
        (vllm(itls=[[0.1]]), "no list 'itls' with a value a request"),
        (vllm(itls=[None] * LEAST), "request 0: latency_s is nan"),
    ],
)
def test_a_wrong_log_is_refused_with_its_place(written, text, says):
    with pytest.raises(BadFile) as caught:
        read_log(written(text))
    assert says in str(caught.value)


def test_few_requests_are_too_few(written):
    with pytest.raises(UsageError, match="1 requests are too few to fit to"):
        read_log(written(HEAD + ROW))
