"""Finding binaries, and asking each one case whose answer is known.

The binaries are fake where no real one can be (strata never builds or ships ASTRA-sim); one test runs the user's.
"""

from __future__ import annotations

import json
import os

import pytest

from strata.errors import MissingPart, StrataError, UsageError
from strata.simulate.astra import run as run_module
from strata.simulate.astra.discover import AstraBackend, Binaries, find, is_checked
from strata.simulate.astra.run import self_check
from tests.simulate.astra.fake_astra import NAMES, fake, script


def environment(tmp_path, **more):
    return {
        "PATH": "",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        **{key: str(value) for key, value in more.items()},
    }


def test_nothing_is_found_where_nothing_is(tmp_path):
    assert find({}) == Binaries()
    assert find(environment(tmp_path, PATH=f":{tmp_path}:")) == Binaries()


def test_a_folder_holds_both(tmp_path):
    both = {kind: fake(tmp_path / "bin", kind) for kind in NAMES}
    assert find(environment(tmp_path, STRATA_ASTRA_SIM=tmp_path / "bin")) == Binaries(**both)
    assert find(environment(tmp_path, PATH=tmp_path / "bin")) == Binaries(**both)


def test_ns3_is_a_file_a_folder_or_on_the_path_whatever_its_version_and_profile(tmp_path):
    binary = fake(tmp_path / "bin", "ns3")
    (tmp_path / "bin" / "ns3.41-AstraSimNetwork-debug").write_text("not executable")
    named = [{"STRATA_NS3": binary}, {"STRATA_NS3": binary.parent}, {"PATH": f"{tmp_path}:{binary.parent}"}]
    assert {find(environment(tmp_path, **more)) for more in named} == {Binaries(ns3=binary)}
    with pytest.raises(MissingPart, match=r"no executable ns3\*-AstraSimNetwork-\* in this folder"):
        find(environment(tmp_path, STRATA_NS3=tmp_path))


def test_what_is_named_goes_before_the_path_and_the_path_adds_the_other(tmp_path):
    other, mine = fake(tmp_path / "path", "aware"), fake(tmp_path / "mine", "unaware")
    fake(tmp_path / "path", "unaware")
    found = find(environment(tmp_path, STRATA_ASTRA_SIM=mine, PATH=tmp_path / "path"))
    assert found == Binaries(aware=other, unaware=mine)


def test_the_folder_one_stands_in_is_not_searched(tmp_path, monkeypatch):
    fake(tmp_path, "aware")
    monkeypatch.chdir(tmp_path)
    assert find(environment(tmp_path, PATH=os.pathsep)) == Binaries()


@pytest.mark.parametrize("variable", ["STRATA_ASTRA_SIM", "STRATA_NS3"])
def test_a_variable_that_names_nothing_that_runs_is_an_error(tmp_path, variable):
    with pytest.raises(MissingPart, match=f"{variable}=.*none_aware: no such file"):
        find(environment(tmp_path, **{variable: tmp_path / "none_aware"}))
    (tmp_path / "text_aware").write_text("")
    with pytest.raises(MissingPart, match="is not executable"):
        find(environment(tmp_path, **{variable: tmp_path / "text_aware"}))


def test_a_folder_without_a_binary_is_an_error(tmp_path):
    with pytest.raises(MissingPart, match="no executable AstraSim_Analytical_Congestion_Unaware"):
        find(environment(tmp_path, STRATA_ASTRA_SIM=tmp_path))


def test_a_name_that_does_not_say_which_it_is_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="does not say whether"):
        find(environment(tmp_path, STRATA_ASTRA_SIM=script(tmp_path / "astra", "")))


def test_a_backend_that_is_missing_says_how_to_get_it():
    for backend in AstraBackend:
        with pytest.raises(MissingPart) as caught:
            Binaries().of(backend)
        assert ("STRATA_NS3" if backend is AstraBackend.NS3 else "STRATA_ASTRA_SIM") in caught.value.hint


@pytest.mark.parametrize("backend", AstraBackend)
@pytest.mark.parametrize("mode", ["right", "old"])
def test_the_right_answer_is_remembered_until_the_file_changes(tmp_path, backend, mode):
    binary, env = fake(tmp_path / "bin", backend.value, mode), environment(tmp_path)
    assert not is_checked(binary, env)
    self_check(binary, backend, env)
    assert is_checked(binary, env)
    os.utime(binary, ns=(1, 1))
    assert not is_checked(binary, env)


def test_a_checked_binary_is_not_run_again(tmp_path):
    binary, env = fake(tmp_path / "bin"), environment(tmp_path)
    self_check(binary, AstraBackend.UNAWARE, env)
    status = binary.stat()
    script(binary, "#!/bin/sh\nexit 1".ljust(status.st_size, "\n"))
    os.utime(binary, ns=(status.st_mtime_ns, status.st_mtime_ns))
    self_check(binary, AstraBackend.UNAWARE, env)


def test_a_wrong_answer_is_an_error_and_is_not_remembered(tmp_path):
    binary, env = fake(tmp_path / "bin", mode="wrong"), environment(tmp_path)
    with pytest.raises(StrataError, match="takes 9197541 ns, and it says 9197542 ns"):
        self_check(binary, AstraBackend.UNAWARE, env)
    assert not is_checked(binary, env)


@pytest.mark.parametrize(
    ("text", "limit_s", "what"),
    [("exec sleep 600", 1, "did not end within 1 s"), ("exit 3", 120, "exit 3"), ("", 120, "never finished")],
)
def test_a_binary_that_hangs_fails_or_says_nothing_does_not_pass(tmp_path, monkeypatch, text, limit_s, what):
    monkeypatch.setattr(run_module, "CHECK_TIME_LIMIT_S", limit_s)
    binary = script(tmp_path / "bad", f"#!/bin/sh\n{text}\n")
    with pytest.raises(StrataError, match=rf"bad does not pass the self-check: .*{what}"):
        self_check(binary, AstraBackend.AWARE, environment(tmp_path))


def test_a_binary_for_another_machine_is_a_missing_part(tmp_path):
    with pytest.raises(MissingPart, match="does not start"):
        self_check(script(tmp_path / "other", "no program"), AstraBackend.AWARE, environment(tmp_path))


def test_a_relative_name_is_remembered_as_the_file_it_is(tmp_path, monkeypatch):
    binary = fake(tmp_path / "bin", "aware")
    monkeypatch.chdir(tmp_path)
    assert find(environment(tmp_path, STRATA_ASTRA_SIM="bin")).aware == binary


@pytest.mark.parametrize("text", ["[1]", "{", json.dumps({"other": [1, 2]})])
def test_a_strange_cache_is_no_obstacle(tmp_path, text):
    binary, env = fake(tmp_path / "bin"), environment(tmp_path)
    (tmp_path / "cache" / "strata").mkdir(parents=True)
    (tmp_path / "cache" / "strata" / "astra-sim.json").write_text(text)
    self_check(binary, AstraBackend.UNAWARE, env)
    assert is_checked(binary, env)


def test_a_home_that_cannot_be_written_is_no_obstacle(tmp_path):
    (tmp_path / "cache").write_text("")
    self_check(fake(tmp_path / "bin"), AstraBackend.UNAWARE, environment(tmp_path))


@pytest.mark.skipif(
    not any(os.environ.get(name) for name in ("STRATA_ASTRA_SIM", "STRATA_NS3")),
    reason="needs an ASTRA-sim binary: STRATA_ASTRA_SIM names none",
)
@pytest.mark.parametrize("backend", AstraBackend)
def test_the_users_binary_passes(tmp_path, backend):
    binary = getattr(find(os.environ), backend.value)
    if binary is None:
        pytest.skip(f"no {backend} binary")
    self_check(binary, backend, environment(tmp_path))
