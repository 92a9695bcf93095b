"""`strata report`: one file that needs nothing else."""

from __future__ import annotations

import json
from base64 import b64decode

import strata
from strata.api.host import host_report
from strata.cli.main import run
from tests.cli.test_plan import FLEET, JOB
from tests.host.analysis.test_pool_lanes import crowd
from tests.web.test_pages import tags


def test_plans_and_fleets_become_one_file_that_loads_nothing(tmp_path, capsys):
    names = ("fleet.yaml", "job.yaml", "plan.json", "serve.json", "trace.txt", "host.json", "report.html")
    fleet, job, plan, serving, trace, host, page = (tmp_path / name for name in names)
    fleet.write_text(FLEET)
    job.write_text(JOB)
    strata.plan(fleet, job, baselines=False).save(plan)
    strata.serve_plan("seed", "serve-llama-3.1-70b").save(serving)
    trace.write_text("\n".join(crowd(["<i>x"]).lines) + "\n")
    host.write_text(json.dumps(host_report(trace).to_dict()))
    assert (
        run(["report", str(plan), str(serving), str(fleet), str(host), "-o", str(page), "--title", "<b>Week</b>"])
        == 0
    )
    text = page.read_text()
    names = [tag for tag, _ in tags(text)]
    assert names.count("svg") >= 6
    assert "threads of 3 pools that wait for a CPU" in text
    assert not {"script", "link", "iframe"} & set(names)
    images = [dict(attributes)["src"] for tag, attributes in tags(text) if tag == "img"]
    assert [address.partition(",")[0] for address in images] == ["data:image/svg+xml;base64"]
    assert b"one step" in b64decode(images[0].partition(",")[2])
    assert "&lt;b&gt;Week&lt;/b&gt;" in text
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    assert capsys.readouterr().err == f"wrote {page}\n"


def test_other_files_are_refused_and_nothing_is_written(tmp_path, capsys):
    job, page = tmp_path / "job.yaml", tmp_path / "report.html"
    job.write_text(JOB)
    assert run(["report", str(job), "-o", str(page)]) == 2
    assert "a report is of plans, fleets and host reports, and this is a TrainingJob" in capsys.readouterr().err
    assert not page.exists()


def test_a_plan_whose_fleet_is_gone_is_shown_without_its_step(tmp_path):
    fleet, job, plan, page = (tmp_path / name for name in ("fleet.yaml", "job.yaml", "plan.json", "report.html"))
    fleet.write_text(FLEET)
    job.write_text(JOB)
    strata.plan(fleet, job, baselines=False).save(plan)
    fleet.unlink()
    assert run(["report", str(plan), "-o", str(page)]) == 0
    assert "Not drawn: the fleet or the job of this plan has changed since" in page.read_text()
