from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.decision import Trust
from strata.simulate.inference.calibration import LEAST, WINDOW, Calibration, NodeFit, Phase
from strata.simulate.inference.roofline import Rates, decode_terms, parts_of, prefill_terms
from tests.support.inference_models import served, small
from tests.support.laws import examples

LLAMA = served("llama-3.1-8b")
PRIOR = decode_terms(LLAMA, Rates(150e12, 1.4e12), batch=16, context=1024)
L = LLAMA.num_layers


class Seen(NamedTuple):
    phase: Phase
    first: int
    end: int
    units: int
    context: float
    seconds: float


def observe(calibration: Calibration, seen: Seen, *, node_id: str = "n") -> None:
    calibration.observe(node_id, **seen._asdict())


Truth = Callable[[int, float], float]


def measured(truth: Truth, count: int, *, noise: float = 0.0, wild: float = 0.0, seed: int = 0) -> list[Seen]:
    """Decode steps of the whole model; a share `wild` takes 50 times as long."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        units, context = int(rng.integers(1, 33)), float(rng.uniform(1, 4000))
        factor = (1 + noise * rng.standard_normal()) * (50 if rng.random() < wild else 1)
        found.append(Seen("decode", 0, L, units, context, truth(units, context) * factor))
    return found


def after(samples: list[Seen]) -> NodeFit:
    calibration = Calibration()
    for sample in samples:
        observe(calibration, sample)
    return calibration.fit("n", "decode", PRIOR)


def worst_error(fit: NodeFit, truth: Truth) -> float:
    points = [(units, context) for units in (1, 8, 32) for context in (1.0, 1000.0, 4000.0)]
    return max(abs(fit.terms.at(*point).sum() / truth(*point) - 1) for point in points)


def roofline(units: int, context: float) -> float:
    return float(PRIOR.at(units, context).sum())


def test_a_node_that_was_never_measured_takes_what_the_roofline_says() -> None:
    fit = Calibration().fit("n", "decode", PRIOR)

    assert fit.terms is PRIOR
    assert (fit.confidence, fit.trust) == (0.0, Trust.ANALYTIC)


@examples(30)
@given(st.floats(1e-4, 30), st.floats(0, 3), st.floats(0, 3))
def test_a_true_line_is_found(fixed_s: float, per_unit: float, per_context: float) -> None:
    def truth(units: int, context: float) -> float:
        return fixed_s * (1 + per_unit * units / 16 + per_context * units / 16 * context / 1024)

    fit = after(measured(truth, WINDOW))

    assert worst_error(fit, truth) < 0.1
    assert fit.trust is Trust.CALIBRATED
    assert fit.confidence > 0.95


def test_noise_averages_out() -> None:
    def truth(units: int, context: float) -> float:
        return 0.04 + 1e-3 * units + 5e-7 * units * context

    assert worst_error(after(measured(truth, WINDOW, noise=0.1)), truth) < 0.1


def test_a_fifth_of_wild_measurements_is_seen_through() -> None:
    def truth(units: int, context: float) -> float:
        return 0.04 + 1e-3 * units + 5e-7 * units * context

    assert worst_error(after(measured(truth, WINDOW, noise=0.05, wild=0.2)), truth) < 0.1


def test_a_few_measurements_slow_all_terms_alike() -> None:
    samples = [Seen("decode", 0, L, 16, 1024.0, 3 * roofline(16, 1024))] * LEAST

    fit = after(samples)

    assert fit.terms.at(16, 1024).sum() == pytest.approx(3 * roofline(16, 1024), rel=0.02)
    assert fit.terms.at(1, 1).sum() == pytest.approx(3 * roofline(1, 1), rel=0.1)


@examples(50)
@given(
    st.lists(
        st.builds(
            lambda first, length, units, context, seconds: Seen(
                "decode", first, min(L, first + length), units, context, seconds
            ),
            st.integers(0, L - 1),
            st.integers(1, L),
            st.integers(1, 256),
            st.floats(0, 1e5),
            st.floats(1e-6, 1e3),
        ),
        max_size=40,
    )
)
def test_whatever_was_measured_no_term_is_negative_and_parts_add_up(samples: list[Seen]) -> None:
    fit = after(samples)

    terms = fit.terms
    assert min(terms.fixed_s.min(), terms.per_unit_s.min(), terms.per_unit_context_s.min()) >= 0
    assert 0 <= fit.confidence <= 1
    step = terms.at(4, 100)
    assert np.all(np.isfinite(step))
    assert step[parts_of(L, 0, 9)].sum() + step[parts_of(L, 9, L)].sum() == pytest.approx(step.sum())


def test_the_same_measurements_give_the_same_answer() -> None:
    samples = measured(lambda units, context: 0.05 + 0.001 * units, 50, noise=0.1)

    assert after(samples).terms.fixed_s.tolist() == after(samples).terms.fixed_s.tolist()


def test_what_was_measured_on_some_layers_holds_for_others() -> None:
    samples = [s._replace(first=0, end=8, seconds=s.seconds / 4) for s in measured(roofline, 60)]
    share = PRIOR.at(16, 1024)[:8].sum() / PRIOR.at(16, 1024).sum()
    slow = [s._replace(seconds=2 * s.seconds * 4 * share) for s in samples]

    step = after(slow).terms.at(16, 1024)

    assert step[8:24].sum() == pytest.approx(2 * PRIOR.at(16, 1024)[8:24].sum(), rel=0.03)


def test_trust_grows_from_analytic_to_calibrated() -> None:
    samples = measured(roofline, LEAST)

    assert after(samples[:-1]).trust is Trust.ANALYTIC
    assert after(samples).trust is Trust.CALIBRATED


def test_measurements_that_contradict_each_other_are_not_trusted() -> None:
    samples = [Seen("decode", 0, L, 16, 1024.0, 0.01 * 10 ** (i % 5)) for i in range(40)]

    assert after(samples).trust is Trust.ANALYTIC


def test_confidence_grows() -> None:
    confidence = [after(measured(roofline, count, noise=0.05)).confidence for count in (0, 1, 4, 16, 64)]

    assert confidence == sorted(confidence)
    assert confidence[-1] > 0.99


def test_what_is_long_ago_is_forgotten() -> None:
    slow = measured(lambda units, context: 5 * roofline(units, context), 100)
    now = measured(roofline, WINDOW)

    assert after([*slow, *now]).terms.fixed_s.tolist() == after(now).terms.fixed_s.tolist()


def test_impossible_measurements_are_left_out() -> None:
    sound = Seen("decode", 0, L, 16, 1024.0, 0.02)
    impossible = [
        sound._replace(seconds=0.0),
        sound._replace(seconds=float("nan")),
        sound._replace(seconds=float("inf")),
        sound._replace(units=0),
        sound._replace(first=4, end=4),
        sound._replace(end=L + 1),
        sound._replace(context=-1.0),
    ]

    assert after(impossible).count == 0


def test_phases_and_nodes_are_apart_and_can_be_forgotten() -> None:
    calibration = Calibration()
    observe(calibration, Seen("decode", 0, L, 16, 1024.0, 1.0), node_id="a")
    before = calibration.copy()
    observe(calibration, Seen("prefill", 0, L, 512, 0.0, 1.0), node_id="a")

    assert calibration.fit("a", "prefill", prefill_terms(LLAMA, Rates(1e14, 1e12), tokens=512)).count == 1
    assert before.fit("a", "prefill", PRIOR).count == 0
    assert calibration.fit("b", "decode", PRIOR).count == 0
    calibration.forget("a")
    assert calibration.fit("a", "decode", PRIOR).count == 0
    assert before.fit("a", "decode", PRIOR).count == 1


def test_a_node_a_thousand_times_slower_than_its_figures_is_believed() -> None:
    info = small(4)
    prior = decode_terms(info, Rates(1e14, 1e12), batch=4, context=100)
    calibration = Calibration()
    for units in (1, 2, 3, 4) * 4:
        observe(calibration, Seen("decode", 0, 4, units, 100.0, 0.2 + 0.01 * units))

    fit = calibration.fit("n", "decode", prior)

    assert fit.terms.at(4, 100).sum() == pytest.approx(0.24, rel=0.02)
    assert fit.terms.at(1, 100).sum() == pytest.approx(0.21, rel=0.05)


def test_a_node_of_unknown_rates_cannot_be_corrected() -> None:
    prior = decode_terms(LLAMA, Rates(0.0, 0.0), batch=4, context=100)
    calibration = Calibration()
    observe(calibration, Seen("decode", 0, L, 4, 100.0, 0.1))

    assert calibration.fit("n", "decode", prior).terms is prior
