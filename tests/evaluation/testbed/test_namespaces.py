import os
import shutil

import pytest

from strata.errors import MissingPart
from strata.evaluation.testbed.namespaces import LinkShape, Namespaces, check_parts


def test_a_shape_is_said_in_tc_s_words():
    shape = LinkShape(25e6, 0.0105)
    assert shape.tbf()[:3] == ["tbf", "rate", "200000000bit"]
    assert shape.netem()[:3] == ["netem", "delay", "10500us"]


def test_a_rested_link_sends_at_least_a_packet_and_at_most_a_third_of_a_millisecond_at_once():
    assert [int(LinkShape(rate, 0.0).tbf()[4]) for rate in (1e5, 1e9)] == [9100, 300_000]


def test_names_tell_the_run_apart():
    assert Namespaces(3, has_latency=False).names == tuple(f"strata-{os.getpid()}-{index}" for index in range(3))


@pytest.mark.parametrize(
    ("tools", "user", "message"), [((), 0, "ip, which"), (("ip",), 0, "tc, which"), (("ip", "tc"), 1000, "root")]
)
def test_what_is_missing_is_said_in_one_sentence(monkeypatch, tools, user, message):
    monkeypatch.setattr(shutil, "which", lambda tool: tool if tool in tools else None)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    with pytest.raises(MissingPart, match=message) as caught:
        check_parts()
    assert caught.value.exit_code == 5
    assert caught.value.hint
