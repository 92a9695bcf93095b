"""docs/cluster.md: the output it shows is what the commands print, and its tables are what the code has."""

from __future__ import annotations

import re
import shlex

import pytest
import yaml
from click.testing import CliRunner

from strata.cli.main import cli
from strata.cluster.api import annotations
from strata.cluster.api.jobs import read_job
from strata.cluster.api.placement_annotation import GATE, MANAGED
from strata.cluster.api.pod_claims import CLAIM, job_claim
from tests import ROOT

ROOT = ROOT
PAGE = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
SHOWN = re.findall(
    r"^\$ strata ([^\n]*)\n(.*?)(?=^\$ |\Z)",
    "".join(re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)),
    re.DOTALL | re.MULTILINE,
)


@pytest.mark.parametrize(("command", "output"), SHOWN, ids=[command.split(" --")[0] for command, _ in SHOWN])
def test_the_output_on_the_page_is_what_is_printed(command, output, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "80")
    answer = CliRunner().invoke(cli, shlex.split(command))
    assert answer.exit_code == 0
    assert answer.stdout == output


def test_the_page_shows_something():
    assert len(SHOWN) == 2


def test_every_annotation_of_a_claim_is_on_the_page():
    listed = set(re.findall(r"^\| `ai\.compute/([a-z0-9-]+)` \|", PAGE, re.MULTILINE))
    asked = set(re.findall(r"ai\.compute/([a-z0-9-]+)", annotations.__doc__))
    assert asked <= listed
    assert listed - asked <= set(annotations.OTHERS)
    assert CLAIM.removeprefix(annotations.PREFIX) in listed


def test_the_label_and_the_gate_are_named():
    assert f'`{MANAGED}: "true"`' in PAGE
    assert f"`{GATE}`" in PAGE


def test_the_example_job_asks_for_what_the_page_says():
    job = yaml.safe_load((ROOT / "examples/cluster/job.yaml").read_text())
    claim = job_claim(read_job(job), {})
    assert (claim.pods, claim.devices, claim.accelerator, claim.substitution) == (4, 1, "A100-SXM4-80GB", "allow")
    assert job["metadata"]["labels"] == {MANAGED: "true"}
    # Applied again it would stop the job; the webhook suspends what is created.
    assert "suspend" not in job["spec"]
