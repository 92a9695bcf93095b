"""The real scx_layered judges lint: what it refuses lint refuses, and lint refuses nothing that it takes.

It reads and checks a policy before it opens its BPF program, which an ordinary user may not, and nothing is
scheduled by it. What it refuses later only, as it sets up its layers or runs, it is asked in the guest.
"""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from strata.errors import BadFile
from strata.host.machine import cpus, kernel
from strata.host.policy.codec import load
from strata.host.policy.lint.policy import lint
from strata.host.policy.lint.room import TargetMachine
from strata.reasons import LAYERS_REFUSED
from tests.host.policy.lint.wrong_policies import RIGHT, WRONG
from tests.host.vm import guest as virtual
from tests.support.laws import examples

LATER = {
    "cpus-range-wrong", "matches-too-many", "place-absent", "regex-wrong", "template-misused", "util-range-wrong",
}  # fmt: skip
"""What it refuses, some or all of it, once its BPF program is open."""
TAKEN = "Running scx_layered (build ID"
POLICIES = {
    **{wrong.name: wrong.policy for wrong in WRONG},
    **{name: policy for name, (policy, _) in RIGHT.items()},
}
SETUP_S = 240


def text_of(policy):
    return policy if isinstance(policy, str) else json.dumps(policy)


@pytest.fixture(scope="module")
def scx_layered():
    """What says why the program refuses a policy before its BPF program is open; "" where it goes on."""
    program = os.open(virtual.find() / "bin/scx_layered", os.O_RDONLY)
    # It may lie where an ordinary user cannot go.
    command, nobody = f"/proc/self/fd/{program}", {"user": 65534} if os.geteuid() == 0 else {}

    def ask(text):
        done = subprocess.run(
            [command, text], capture_output=True, text=True, errors="replace", timeout=300, check=False,
            pass_fds=[program], env={"RUST_LIB_BACKTRACE": "0", "NO_COLOR": "1"}, **nobody,
        )  # fmt: skip
        assert done.returncode != 0, "it runs, which no ordinary user may"
        if TAKEN in done.stdout + done.stderr:
            return ""
        assert done.stderr.strip(), done.stdout
        return done.stderr

    yield ask
    os.close(program)


@pytest.fixture(scope="module")
def linted(tmp_path_factory):
    """What says which tokens lint has for what scx_layered refuses, on this machine."""
    file, site = tmp_path_factory.mktemp("policy") / "policy.json", TargetMachine(cpus.probe(), kernel.probe())

    def ask(text):
        file.write_text(text)
        try:
            policy = load(str(file))
        except BadFile:
            return {"policy-unreadable"}
        return {finding.reason.token for finding in lint(policy, site=site)} & set(LAYERS_REFUSED)

    return ask


def agreed(text, tokens, why):
    assert tokens or not why, f"a miss: {text}\n{why}"
    assert why or tokens <= LATER, f"a false alarm: {tokens} in {text}"


@pytest.mark.parametrize("name", POLICIES)
def test_lint_and_the_real_program_agree(name, scx_layered, linted):
    text = text_of(POLICIES[name])
    agreed(text, linted(text), scx_layered(text))


ODD = ("<1e400>", "<-0>", "<NaN>", "<1E2>")
"""Stand for what is between the brackets."""
JUNK = st.sampled_from(
    [
        None, True, False, 0, -1, 1, 3, -0.0, 0.5, 1.5, 1e18, *ODD, 2**31, 2**32, 2**63, 2**64, -(2**31) - 1,
        "", "x", "x" * 16, "é" * 8, "\x00", "(?-u:\\xff)", "a{2}", "\\p{Greek}", [], [[]], [None], [0, 1], [1, 0],
        [0.2, 0.1], {}, {"CommPrefix": 1}, {"CommPrefix": "a"}, {"Open": {}},
    ]
)  # fmt: skip
"""What stands where something else should."""


@given(name=st.sampled_from(sorted(POLICIES)), data=st.data())
@examples(300)
def test_they_agree_on_policies_with_a_part_changed(name, data, scx_layered, linted):
    policy = copy.deepcopy(POLICIES[name])
    boxes = list(_boxes(policy))
    assume(any(boxes))
    box = data.draw(st.sampled_from([box for box in boxes if box]))
    key = data.draw(st.sampled_from(sorted(box) if isinstance(box, dict) else range(len(box))))
    if data.draw(st.booleans()):
        box[key] = data.draw(JUNK)
    else:
        del box[key]
    text = re.sub(r'"<(.*?)>"', r"\1", json.dumps(policy))
    agreed(text, linted(text), scx_layered(text))


def _boxes(value):
    if isinstance(value, (dict, list)):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _boxes(inner)


@pytest.fixture(scope="module")
def guest(files):
    # One CPU is emulated at a time: see Guest.
    with virtual.Guest(files, is_traced=True) as machine:
        yield machine


ELSEWHERE = {"least share above most", "a template for every cgroup", "a template at the end"}
"""It takes shares that come to the same number of CPUs, and templates where cgroups are few, as in the guest."""


@pytest.mark.parametrize(
    "wrong",
    [wrong for wrong in WRONG if wrong.token in LATER and wrong.site is None and wrong.name not in ELSEWHERE],
    ids=lambda wrong: wrong.name,
)
def test_what_is_refused_later_ends_it(wrong, guest):
    done = guest.run("scx_layered", text_of(wrong.policy), limit_s=SETUP_S)
    assert done["code"] not in (0, None), done["out"][-2000:]
