"""What a fleet's names bring into a script or a YAML file stays on the line of its comment."""

from __future__ import annotations

import pytest
import yaml

from strata.workload.script import comment, slugs

EVIL = [
    "x\n- evil: 1", "x\r\nevil: 1", "x\x85evil: 1", "x\u2028evil: 1", "x\u2029evil: 1", "x\x1b[2Jevil",
    "x\x00", "x\x0bevil: 1", "$(reboot)`id`",
]  # fmt: skip


@pytest.mark.parametrize("evil", EVIL)
def test_a_comment_is_a_comment_in_yaml_and_in_a_shell(evil):
    text = comment([f"of {evil}"])
    assert yaml.safe_load(text + "kept: true\n") == {"kept": True}
    assert text.splitlines() == [text.removesuffix("\n")]
    assert text.startswith("# of x") or evil.startswith("$")


@pytest.mark.parametrize("evil", EVIL)
def test_a_slug_is_a_plain_word(evil):
    (slug,) = slugs([evil])
    assert slug.replace("-", "").isalnum()
