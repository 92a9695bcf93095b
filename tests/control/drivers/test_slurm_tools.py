"""What Slurm's tools say, and what is made of it; lines as 22.05 wrote them, and as others do."""

import subprocess

import pytest

from strata.control.drivers.slurm_script import Scripts
from strata.control.drivers.slurm_tools import SlurmCluster, is_usable, parse_jobs, parse_nodes
from strata.errors import MissingPart, UsageError

WIDTHS = (120, 20, 80, 240, 240, 40)


def node(name="n0", state="idle", gres="gpu:4", used="gpu:0", cpus="0/4/0/4"):
    (found,) = parse_nodes("".join(map(str.ljust, (name, state, "main", gres, used, cpus), WIDTHS)))
    return found


@pytest.mark.parametrize(
    ("gres", "counts"),
    [
        ("gpu:4", {"gpu": 4}),
        ("gpu:a100:8(S:0-1)", {"gpu": 8, "gpu:a100": 8}),
        ("gpu:a100:3(IDX:0,2-3)", {"gpu": 3, "gpu:a100": 3}),
        ("gpu:(null):0(IDX:N/A)", {"gpu": 0}),
        ("gpu:a100:4(S:0),gpu:h100:2(S:1),shard:8", {"gpu": 6, "gpu:a100": 4, "gpu:h100": 2, "shard": 8}),
        ("(null)", {}),
    ],
)
def test_devices_of_a_node_are_counted_by_name_and_type(gres, counts):
    assert node(gres=gres).gres == counts


@pytest.mark.parametrize(
    ("state", "usable"),
    [
        ("idle", True), ("mix", True), ("alloc", True), ("comp", True), ("idle~", True), ("mix-", True),
        ("plnd", True), ("down", False), ("down*", False), ("idle*", False), ("drain", False), ("drng", False),
        ("inval", False), ("maint", False), ("fail", False), ("resv", False),
    ],
)  # fmt: skip
def test_nodes_that_take_no_jobs_have_no_devices(state, usable):
    assert is_usable(node(state=state)) is usable


def test_a_reserved_node_is_for_those_with_a_reservation():
    assert is_usable(node(state="resv"), has_reservation=True)


def test_a_folder_may_have_any_letters():
    (job,) = parse_jobs("12|PENDING|Resources|/home/a b|c/x\n")
    assert (job.id, job.reason, job.folder, job.is_waiting) == ("12", "Resources", "/home/a b|c/x", True)


def test_lines_that_are_none_of_ours_are_left_out():
    assert list(parse_jobs("slurm: warning\n\n")) == list(parse_nodes("warning\n")) == []


def test_without_slurm_or_its_configuration_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingPart, match="sbatch is not installed"):
        SlurmCluster().check()
    for tool in ("sbatch", "squeue", "scancel", "sinfo"):
        (tmp_path / tool).write_text("#!/bin/sh\necho 'munge: no socket' >&2; exit 1\n")
        (tmp_path / tool).chmod(0o755)
    with pytest.raises(UsageError, match=r"no such slurm\.conf"):
        SlurmCluster(tmp_path / "slurm.conf").check()
    with pytest.raises(UsageError, match="munge: no socket"):
        SlurmCluster().check()
    (tmp_path / "sinfo").write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2; exit 1\n")
    SlurmCluster().check()  # a cluster that is down may come back


def test_what_is_in_scripts_is_nothing_but_words(tmp_path):
    odd = {"NAME": 'a\'b $(touch ran) "c"\n`touch ran`', "RANK": "0"}
    folder = tmp_path / "it's $HOME"
    folder.mkdir()
    command = ("sh", "-c", 'printf %s "$NAME$1" > "$2"', "-", "x'y", str(tmp_path / "said"))
    scripts = Scripts(folder, command, [odd], 30.0)
    for text in (scripts.rank(), scripts.batch()):
        subprocess.run(["sh", "-n"], input=text, text=True, check=True)
    (folder / "rank.sh").write_text(scripts.rank())
    subprocess.run(["sh", "rank.sh"], cwd=folder, env={"SLURM_PROCID": "0", "PATH": "/usr/bin:/bin"}, check=True)
    assert (tmp_path / "said").read_text() == odd["NAME"] + "x'y"
    assert (folder / "exit.0").read_text() == "0\n"
    assert not list(tmp_path.rglob("ran"))
