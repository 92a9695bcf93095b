"""The Dirichlet head: its distribution against torch's, its symmetry, and that it learns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from strata.training.plan.exact.problem import Problem
from tests.support.builders import domain, fleet, job, layers

pytestmark = pytest.mark.real("torch")

ALPHA = [[1.5, 3.0, 2.0], [4.0, 1.2, 9.0]]
LOGIT = [[0.3, -1.0, 2.0], [1.0, 0.5, 9.0]]
PRESENT = [[True, True, True], [True, True, False]]


def ratios_of(alpha: Any, logit: Any, present: Any) -> Any:
    import torch

    from strata.evaluation.allocation_heads.dirichlet import Ratios

    return Ratios(torch.tensor(alpha, dtype=torch.float64), torch.tensor(logit, dtype=torch.float64),
                  torch.tensor(present))  # fmt: skip


def masks(logit: list[float]) -> Any:
    """Every non-empty mask of some domains with its probability, by enumeration."""
    chance = 1 / (1 + np.exp(-np.array(logit)))
    found = [np.array([number >> k & 1 for k in range(len(logit))]) for number in range(1, 1 << len(logit))]
    weight = np.array([np.prod(np.where(mask, chance, 1 - chance)) for mask in found])
    return found, weight / weight.sum()


def problem(*devices: int, batch: int = 64) -> Problem:
    sites = fleet(*(domain(f"d{k}", count) for k, count in enumerate(devices)), gbps=20.0, ms=1.0)
    return Problem.of(sites, job(layers(22), batch=batch))


def test_the_density_of_ratios_is_that_of_torch_times_that_of_the_mask():
    import torch

    policy = ratios_of(ALPHA, LOGIT, PRESENT)
    drawn = torch.tensor([[0.2, 0.0, 0.8], [0.6, 0.4, 0.0]], dtype=torch.float64)
    first, second = (
        torch.distributions.Dirichlet(torch.tensor(a, dtype=torch.float64)) for a in ([1.5, 2], [4, 1.2])
    )
    wanted = []
    for dist, row, logit, mask in (
        (first, [0.2, 0.8], LOGIT[0], [1, 0, 1]),
        (second, [0.6, 0.4], LOGIT[1][:2], [1, 1]),
    ):
        found, chance = masks(logit)
        (mine,) = [c for m, c in zip(found, chance, strict=True) if m.tolist() == mask]
        wanted.append(float(dist.log_prob(torch.tensor(row, dtype=torch.float64))) + np.log(mine))
    np.testing.assert_allclose(policy.log_prob(drawn), wanted, rtol=1e-12)


def test_the_entropy_is_that_of_torch_plus_that_of_the_mask():
    import torch

    policy = ratios_of(ALPHA[:1], LOGIT[:1], PRESENT[:1])
    _, chance = masks(LOGIT[0])
    inner = torch.distributions.Dirichlet(torch.tensor(ALPHA[0], dtype=torch.float64)).entropy()
    found = policy.entropy(torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64))
    assert float(found[0]) == pytest.approx(float(inner) - float((chance * np.log(chance)).sum()))


def test_samples_have_the_distribution_that_log_prob_says():
    policy = ratios_of(ALPHA[:1] * 20000, LOGIT[:1] * 20000, PRESENT[:1] * 20000)
    drawn = policy.sample(np.random.default_rng(0))
    found, chance = masks(LOGIT[0])
    seen = [((drawn > 0) == mask).all(axis=1).mean() for mask in found]
    np.testing.assert_allclose(seen, chance, atol=0.015)
    everywhere = drawn[(drawn > 0).all(axis=1)]
    np.testing.assert_allclose(everywhere.mean(axis=0), np.array(ALPHA[0]) / sum(ALPHA[0]), atol=0.015)


def test_samples_and_means_are_shares_of_present_domains():
    policy = ratios_of(ALPHA * 200, LOGIT * 200, PRESENT * 200)
    for ratios in (policy.sample(np.random.default_rng(1)), policy.mean()):
        np.testing.assert_allclose(ratios.sum(axis=1), 1.0)
        assert (ratios[np.logical_not(PRESENT * 200)] == 0).all()


def test_one_domain_gets_everything_and_leaves_nothing_to_chance():
    import torch

    policy = ratios_of([[2.0, 1.0]], [[-3.0, 0.0]], [[True, False]])
    assert policy.sample(np.random.default_rng(0)).tolist() == [[1.0, 0.0]]
    assert policy.mean().tolist() == [[1.0, 0.0]]
    whole = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    assert float(policy.log_prob(whole)[0]) == pytest.approx(0.0, abs=1e-12)
    assert float(policy.entropy(whole)[0]) == pytest.approx(0.0, abs=1e-12)


def test_a_fleet_of_one_domain_is_decided():
    from strata.evaluation.allocation_heads.dirichlet import DirichletHead
    from strata.evaluation.allocation_heads.dirichlet_training import decide

    assert decide(DirichletHead(), problem(8)).tolist() == [1.0]


def test_domains_in_another_order_and_with_padding_are_treated_alike():
    import torch

    from strata.evaluation.allocation_heads.dirichlet import DirichletHead, batch, observe

    torch.manual_seed(0)
    network = DirichletHead()
    torch.nn.init.normal_(network.action.weight)
    one = problem(8, 16, 32)
    domains, context = observe(one, (0, 1, 2))
    turned = observe(one, (2, 0, 1))
    wider = observe(problem(8, 8, 8, 8), (0, 1, 2, 3))
    with torch.no_grad():
        (policy, value) = network(*batch([(domains, context), turned, wider]))
    back = [1, 2, 0]
    torch.testing.assert_close(policy.alpha[1, back], policy.alpha[0, :3])
    torch.testing.assert_close(policy.logit[1, back], policy.logit[0, :3])
    torch.testing.assert_close(value[0], value[1])
    assert len(set(policy.alpha[0, :3].tolist())) == 3


def test_training_finds_more_of_the_known_optimum_than_it_began_with():
    # The two large domains are linked well; every share of the small, far one makes a step longer.
    import torch

    from strata.evaluation.allocation_heads.dirichlet import DirichletHead
    from strata.evaluation.allocation_heads.dirichlet_training import Yard, decide, learn
    from tests.support.builders import link

    ends = [*link("a", "b", 50, 1), *link("a", "far", 0.1, 200), *link("b", "far", 0.1, 200)]
    sites = fleet(domain("a", 8), domain("b", 8), domain("far", 8), links=ends)
    yard = Yard(Problem.of(sites, job(layers(22), batch=16)), 3)
    everyone = ((0, 1, 2),)

    def reward(ratios: Any) -> float:
        return float(yard.rewards(everyone, np.array(ratios)[None])[0])

    torch.manual_seed(0)
    before = reward(decide(DirichletHead(), yard.problem))
    head = learn([yard], rng=np.random.default_rng(0), keep_on=lambda progress: progress.number < 40)
    ratios = decide(head, yard.problem)
    best = reward([0.5, 0.5, 0.0])
    assert before < best
    assert reward(ratios) > before + 0.5 * (best - before)


def test_training_on_nothing_that_runs_is_no_training():
    from strata.evaluation.allocation_heads.dirichlet_training import Yard, learn

    # No domain holds 100 times the parameters.
    huge = Problem.of(fleet(domain("a"), domain("b")), job(layers(22, mparams=10000.0)))
    steps: list[Any] = []
    learn([Yard(huge, 2)], rng=np.random.default_rng(0), keep_on=lambda progress: bool(steps.append(progress)))
    assert steps == []
