"""The scorer in torch: untrained it is the safe rule, exported it is itself, and imitation teaches it."""

import numpy as np
import pytest

pytestmark = pytest.mark.real("torch", "onnx")


def tables(count: int, seed: int):
    from strata.learning.tables.random_tables import random_table

    rng = np.random.default_rng(seed)
    return [random_table(rng) for _ in range(count)]


def some_options(table, rows=64):
    rng = np.random.default_rng(0)
    states = table.chains.paths(1, rows, rng)[:, 0]
    return table.options(states, rng.integers(table.reward.shape[1], size=rows))


def test_untrained_it_is_the_fixed_hysteresis():
    from strata.learning.network import Scorer, greedy
    from strata.training.replan import rules

    for table in tables(4, seed=1):
        options = some_options(table)
        np.testing.assert_array_equal(greedy(Scorer())(options), rules.hysteresis()(options))


def test_exported_it_gives_the_same_logits_for_any_number_of_options(tmp_path):
    import torch

    from strata.learning.export import export
    from strata.learning.network import Scorer
    from strata.training.hi_ppo.features import CONTEXT, FEATURES
    from strata.training.hi_ppo.policy import load_policy

    torch.manual_seed(0)
    network = Scorer(width=24)
    for weights in network.parameters():
        torch.nn.init.normal_(weights, std=0.2)
    export(network, tmp_path / "p.onnx")
    policy = load_policy(tmp_path / "p.onnx")
    assert policy.notes == ()
    for decisions, options in ((1, 1), (3, 7), (16, 200)):
        seen, context = torch.randn(decisions, options, len(FEATURES)), torch.randn(decisions, len(CONTEXT))
        legal = torch.rand(decisions, options) > 0.3
        wanted = network(seen, context, legal).detach().numpy()
        np.testing.assert_allclose(
            policy.scores(seen.numpy(), context.numpy(), legal.numpy()), wanted, rtol=1e-4, atol=1e-3
        )


def test_imitation_wins_back_a_quarter_of_what_the_safe_rule_misses_on_tables_it_never_saw():
    import torch

    from strata.learning.imitation import imitate
    from strata.learning.network import Scorer, greedy
    from strata.learning.settings import ImitationSettings
    from strata.learning.tables.value_iteration import solve
    from strata.training.replan import rules

    torch.set_num_threads(1)  # small products: more threads only wait for each other
    torch.manual_seed(0)
    network, rng = Scorer(width=32), np.random.default_rng(2)
    settings = ImitationSettings(rounds=4, episodes=8, steps=12, batch=512, still=256)
    rounds = []
    imitate(
        network, [solve(table) for table in tables(48, seed=3)], settings=settings, rng=rng,
        progress=lambda number, _loss: rounds.append(number),
    )  # fmt: skip
    assert rounds == [0, 1, 2, 3]
    missed = {"safe": 0.0, "learned": 0.0}
    for table in tables(24, seed=4):
        states = table.chains.paths(32, 64, np.random.default_rng(5))
        exact = solve(table).follow(states)[1]
        missed["safe"] += 1 - table.follow(rules.hysteresis(), states)[1] / exact
        missed["learned"] += 1 - table.follow(greedy(network), states)[1] / exact
    assert missed["learned"] < 0.75 * missed["safe"]
