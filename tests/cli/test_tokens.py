"""Tokens as commands are given them: what is none is said, and never shown."""

from __future__ import annotations

import pytest

from strata.cli.main import run
from strata.cli.tokens import token_of

NOBODY = "http://127.0.0.1:1"


@pytest.mark.parametrize("token", ["secret\nsecond line", "secrét", "sec\x00ret"])
def test_a_token_that_no_header_can_carry_is_refused_and_not_shown(tmp_path, monkeypatch, capsys, token):
    """The scheduler was said not to answer, with the token in the message."""
    (tmp_path / "token").write_text(token)
    given = [str(tmp_path / "token")]
    if "\x00" not in token:  # no environment has that
        monkeypatch.setenv("STRATA_TOKEN", token)
        given.append("STRATA_TOKEN")
    for place in given:
        options = [] if place == "STRATA_TOKEN" else ["--token-file", place]
        assert run(["jobs", "--server", NOBODY, *options]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"error: {place} is no token: ")
        assert "sec" not in said.replace(place, "")


def test_a_file_goes_before_the_environment_and_line_ends_around_a_token_are_no_part_of_it(tmp_path, monkeypatch):
    monkeypatch.setenv("STRATA_TOKEN", " of the environment\n")
    (tmp_path / "token").write_text("of the file\n")
    assert token_of(None) == "of the environment"
    assert token_of(str(tmp_path / "token")) == "of the file"


def test_a_file_that_cannot_be_read_is_named_once(tmp_path, capsys):
    assert run(["jobs", "--server", NOBODY, "--token-file", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err == (
        f"error: {tmp_path / 'none'}: No such file or directory\ntry: check the path\n"
    )
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    assert run(["jobs", "--server", NOBODY, "--token-file", str(tmp_path / "bytes")]) == 2
    assert "is not text: it should contain the token" in capsys.readouterr().err
