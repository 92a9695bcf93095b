"""`strata report`: one file that needs nothing else."""

from __future__ import annotations

import strata
from strata.cli.main import run
from tests.cli.test_plan import FLEET, JOB
from tests.web.test_pages import tags


def test_plans_and_fleets_become_one_file_that_loads_nothing(tmp_path, capsys):
    fleet, job, plan, serving, page = (
        tmp_path / name for name in ("fleet.yaml", "job.yaml", "plan.json", "serve.json", "report.html")
    )
    fleet.write_text(FLEET)
    job.write_text(JOB)
    strata.plan(fleet, job, baselines=False).save(plan)
    strata.serve_plan("seed", "serve-llama-3.1-70b").save(serving)
    assert run(["report", str(plan), str(serving), str(fleet), "-o", str(page), "--title", "<b>Week</b>"]) == 0
    text = page.read_text()
    names = [tag for tag, _ in tags(text)]
    assert names.count("svg") >= 5
    assert not {"script", "link", "iframe", "img"} & set(names)
    assert "&lt;b&gt;Week&lt;/b&gt;" in text
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    assert capsys.readouterr().err == f"wrote {page}\n"


def test_other_files_are_refused_and_nothing_is_written(tmp_path, capsys):
    job, page = tmp_path / "job.yaml", tmp_path / "report.html"
    job.write_text(JOB)
    assert run(["report", str(job), "-o", str(page)]) == 2
    assert "a report is of plans and fleets, and this is a TrainingJob" in capsys.readouterr().err
    assert not page.exists()
