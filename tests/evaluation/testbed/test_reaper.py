import os
import subprocess
import sys

import pytest

from strata.evaluation.testbed.reaper import reap

MINE, OTHER = "strata-7-0", "strata-8-0"


@pytest.fixture
def namespaces(tmp_path, monkeypatch):
    """A fake `ip` on a folder with a file a namespace, which holds the pids that run in it."""
    here = tmp_path / "netns"
    here.mkdir()
    script = f"""#!/bin/sh
cd {here}
case "$2" in
  list) for n in *; do [ -e "$n" ] && echo "$n (id: 0)"; done ;;
  pids) cat "$3" ;;
  delete) rm "$3" ;;
esac
exit 0
"""
    (tmp_path / "ip").write_text(script)
    (tmp_path / "ip").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return here


def test_what_runs_in_our_namespaces_is_killed_and_they_are_removed_and_no_others(namespaces):
    sleeper = subprocess.Popen(["sleep", "60"])
    (namespaces / MINE).write_text(f"{sleeper.pid}\n")
    (namespaces / OTHER).write_text(f"{os.getpid()}\n")  # killing this would end the tests
    assert reap([MINE, "strata-7-1"])
    assert sleeper.wait(60) == -9
    assert os.listdir(namespaces) == [OTHER]
    assert not reap([MINE])


@pytest.mark.parametrize("last_words", ["done\n", ""], ids=["orderly", "killed"])
def test_the_end_of_the_parent_is_the_end_of_its_namespaces(namespaces, last_words):
    (namespaces / MINE).write_text("")
    reaper = subprocess.Popen(
        [sys.executable, "-m", "strata.evaluation.testbed.reaper", MINE], stdin=subprocess.PIPE, text=True
    )
    reaper.communicate(last_words, timeout=300)
    assert reaper.returncode == 0
    assert not os.listdir(namespaces)
