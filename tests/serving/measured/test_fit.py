"""What the fit finds again in a log that the model wrote itself, and what it makes of one that it did not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from strata.errors import Infeasible, UsageError
from strata.serving.measured.fit import fit
from strata.workload.serving_job import ServingRatios
from tests.serving.measured.made_up import FLEET, job, log_of, pipeline, requests

TRUE = ServingRatios(step=1.4, sequence=0.01, context=0.7, prompt=1.6)


@pytest.fixture
def measured(tmp_path):
    asked = job(sequences=24, step_tokens=2048)
    there = pipeline(tmp_path, asked)
    return asked, there, log_of(there, replace(asked, calibration={"LabCard": TRUE}), requests())


def test_a_log_of_the_model_itself_is_foretold(measured):
    asked, there, log = measured
    found = fit(asked, log, there.accelerator, there.layout)
    assert max(abs(figure.errors[0]) for figure in found.after.values()) < 0.02
    assert min(abs(figure.errors[0]) for figure in found.before.values()) > 0.2
    assert found.ratios.prompt == pytest.approx(TRUE.prompt, rel=0.1)
    assert found.ratios.step == pytest.approx(TRUE.step, rel=0.1)


def test_what_every_request_takes_besides_is_found_and_slows_nobody(measured):
    """The way through a gateway, which no stage waits for: the first token was foretold too early."""
    asked, there, _ = measured
    late = log_of(there, replace(asked, calibration={"LabCard": TRUE._replace(request_s=0.2)}), requests(rate=0.5))
    soon = log_of(there, replace(asked, calibration={"LabCard": TRUE}), requests(rate=0.5))
    assert np.median(late.ttft_s - soon.ttft_s) == pytest.approx(0.2, abs=1e-3)
    found = fit(asked, late, there.accelerator, there.layout)
    assert found.ratios.request_s == pytest.approx(0.2, rel=0.15)
    assert max(abs(error) for error in found.after["ttft_s"].errors) < 0.03


@pytest.mark.long("fits a log twice")
def test_what_was_measured_of_the_half_not_used_changes_nothing(measured):
    asked, there, log = measured
    half = len(log.requests) // 2
    late = log.latency_s * np.where(np.arange(len(log.requests)) < half, 1.0, 3.0)
    other = fit(asked, replace(log, latency_s=late), there.accelerator, there.layout)
    assert other.ratios == fit(asked, log, there.accelerator, there.layout).ratios
    assert other.after["latency_s"].errors[0] < -0.5


def test_noise_is_not_fitted(measured):
    asked, there, log = measured
    noise = np.random.default_rng(3).lognormal(0, 0.1, len(log.requests))
    found = fit(
        asked, replace(log, ttft_s=log.ttft_s * noise, latency_s=log.latency_s * noise), "LabCard", there.layout
    )
    assert abs(found.after["tpot_s"].errors[0]) < 0.05


def test_a_fleet_of_two_pipelines_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"fleet\.yaml makes 2 pipelines, of LabCard"):
        pipeline(tmp_path, job(), FLEET.replace("num_gpus: 1", "num_gpus: 2"))
    other = "  - {name: h, accelerator: H100-SXM5-80GB, num_gpus: 1, gpus_per_node: 1}\n"
    with pytest.raises(UsageError, match="makes 2 pipelines, of H100-SXM5-80GB, LabCard"):
        pipeline(tmp_path, job(), FLEET + other)


def test_a_fleet_that_does_not_hold_the_model_is_infeasible(tmp_path):
    with pytest.raises(Infeasible, match=r"cannot be served on fleet\.yaml"):
        pipeline(tmp_path, job(), FLEET.replace("48GB", "8GB"))
