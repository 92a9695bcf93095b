from __future__ import annotations

import pickle
import sys

import pytest

from strata.errors import (
    BadFile,
    Fault,
    GoalMissed,
    Infeasible,
    MissingPart,
    OutOfTime,
    StrataError,
    UsageError,
    need,
)

FAULTS = (Fault("f.yaml", "unknown key", 3, 5, where="links.0.bw"), Fault("f.yaml", "not YAML"))


def test_every_kind_of_failure_has_its_own_exit_code():
    kinds = (StrataError, UsageError, Infeasible, GoalMissed, MissingPart, OutOfTime)
    assert [kind.exit_code for kind in kinds] == [1, 2, 3, 4, 5, 6]
    assert BadFile.exit_code == UsageError.exit_code


def test_a_fault_says_file_line_column_and_key():
    assert [str(fault) for fault in FAULTS] == ["f.yaml:3:5: links.0.bw: unknown key", "f.yaml: not YAML"]


def test_a_bad_file_shows_every_fault_and_the_hint():
    shown = BadFile(FAULTS, hint="strata schema Fleet").lines()
    assert shown == [*map(str, FAULTS), "try: strata schema Fleet"]


@pytest.mark.parametrize("error", [UsageError("no", hint="yes"), BadFile(FAULTS, hint="yes"), BadFile(FAULTS)])
def test_an_error_survives_the_way_out_of_a_worker_process(error):
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert back.lines() == error.lines()
    assert str(back) == str(error)


def test_a_library_that_is_here_is_returned():
    assert need("json", extra="train").dumps({}) == "{}"


@pytest.mark.parametrize("module", ["no_such_library", "no_such_library.inner"])
def test_a_library_that_is_not_here_is_named_with_its_extra(module):
    with pytest.raises(MissingPart, match="needs no_such_library, which is not installed") as caught:
        need(module, extra="train")
    assert caught.value.hint == "pip install -e '.[train]', in a clone of strata"


@pytest.mark.parametrize("broken", ["import no_such_dependency", "raise ImportError('libcudart.so: not found')"])
def test_a_library_that_does_not_load_is_a_missing_part_too(tmp_path, monkeypatch, broken):
    (tmp_path / "half_installed.py").write_text(broken)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingPart, match=r"half_installed, which does not load: .*(no_such|libcudart)"):
        need("half_installed", extra="train")
    assert "half_installed" not in sys.modules
