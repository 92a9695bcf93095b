"""strata/AstraSim-v0: gymnasium's own checks, and the laws of its reward and of the network it shows."""

import json
from itertools import pairwise, permutations

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env, data_equivalence
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import MissingPart, StrataError, UsageError
from strata.training.environment import ASTRA_SIM, register
from strata.training.environment.astra_sim import AstraSimEnv
from strata.training.environment.placement import home_placement, plan_of, uniform_placement, why_not
from strata.training.plan.exact.problem import Problem
from tests.simulate.astra.fake_astra import fake
from tests.support.builders import card, domain, fleet, job, layers, link
from tests.support.laws import examples

GBPS = 1e9 / 8


def pair(*, devices=8, gib=80.0, **more):
    """Two domains, ten layers, large messages over a thin link."""
    given = fleet(*(domain(name, devices, accelerator=card(gib=gib)) for name in "ab"), gbps=5.0)
    return AstraSimEnv(task_profile=job(layers(hidden_mib=64), batch=8), fleet=given, **more)


def test_tensor_parallelism_divides_the_linear_heads_of_a_model_too(tmp_path):
    keys = {
        "model_type": "qwen3_5_text", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 16,
        "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 128, "vocab_size": 1000,
        "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 8,
        "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4,
    }  # fmt: skip
    (tmp_path / "hybrid.json").write_text(json.dumps(keys))
    assert AstraSimEnv(num_layers=6, task_profile=str(tmp_path / "hybrid.json")).job.num_heads == 4


@pytest.fixture(autouse=True)
def _registered():
    register()


@pytest.mark.parametrize(
    "arguments",
    [{}, {"edges": True}, {"num_domains": 1, "num_layers": 4}, {"num_domains": 5, "task_profile": "llama-3.1-8b"}],
)
def test_gymnasium_finds_nothing_to_object_to(arguments):
    check_env(gymnasium.make(ASTRA_SIM, **arguments).unwrapped)


def test_registering_again_changes_nothing():
    before = gymnasium.spec(ASTRA_SIM)
    register()
    assert gymnasium.spec(ASTRA_SIM) is before


def test_the_seed_s_own_arguments_are_understood():
    env = gymnasium.make(
        ASTRA_SIM, num_domains=3, num_layers=96, task_profile="llama_70b", bandwidth_fluctuation=0.3
    )
    assert env.action_space.nvec.tolist() == [3] * 96
    assert env.observation_space.shape == (3 * 3 * 2 + 3,)


def episode(env, seed, steps=4):
    seen = [env.reset(seed=seed)]
    env.action_space.seed(seed)
    return seen + [env.step(env.action_space.sample()) for _ in range(steps)]


def test_a_seed_gives_one_episode_whatever_was_run_before():
    env = AstraSimEnv(num_domains=2, num_layers=6)
    first, other, again = (episode(env, seed) for seed in (7, 8, 7))
    assert data_equivalence(first, again, exact=True)
    assert not data_equivalence(first, other, exact=True)


def test_many_at_once_answer_as_one_alone():
    alone = AstraSimEnv(num_layers=10)
    both = gymnasium.make_vec(
        ASTRA_SIM, num_envs=2, vectorization_mode="sync", num_layers=10, vector_kwargs={"copy": True}
    )
    first, _ = both.reset(seed=[3, 4])
    np.testing.assert_array_equal(first[0], alone.reset(seed=3)[0])
    placement = np.array(uniform_placement(10, 3))
    _, rewards, *_, infos = both.step(np.stack([placement, placement]))
    _, reward, *_, info = alone.step(placement)
    assert rewards[0] == reward
    assert infos["step_time_s"][0] == info["step_time_s"]
    both.close()


@pytest.mark.parametrize("domains", [2, 3])
def test_a_step_runs_on_the_network_that_was_observed(domains):
    env = AstraSimEnv(num_domains=domains, num_layers=6, bandwidth_fluctuation=0.9)
    observed, told = env.reset(seed=1)
    # What 1 means: the fastest base link at its best, the latest one at its latest; within a domain 400 Gbps.
    most, latest = 5 * GBPS * 1.9, (0.08 if domains == 3 else 0.1) * 1.2
    for step in range(20):
        placement = env.action_space.sample()
        after, _, _, _, info = env.step(placement)
        assert env.observation_space.contains(after)
        size = domains * domains
        bandwidth, latency = observed[:size].reshape(domains, -1), observed[size : 2 * size].reshape(domains, -1)
        scale = np.where(np.eye(domains, dtype=bool), 50e9, most)
        np.testing.assert_allclose(bandwidth * scale, info["bandwidth_bytes_per_s"], rtol=1e-6)
        np.testing.assert_allclose(latency * latest, info["latency_s"], rtol=1e-6)
        if step == 0:
            np.testing.assert_array_equal(info["bandwidth_bytes_per_s"], told["bandwidth_bytes_per_s"])
        np.testing.assert_allclose(after[2 * size :], np.bincount(placement, minlength=domains) / 6, rtol=1e-6)
        observed = after


def test_links_fluctuate_as_the_seed_says_and_anew_at_each_step():
    env = AstraSimEnv(num_layers=4)
    env.reset(seed=0)
    seen = [env.step(home_placement(4))[4] for _ in range(200)]
    east_west = np.array([info["bandwidth_bytes_per_s"][0, 2] for info in seen]) / (2 * GBPS)
    latency = np.array([info["latency_s"][0, 2] for info in seen]) / 80e-3
    assert 0.7 <= east_west.min() < 0.73
    assert 1.27 < east_west.max() <= 1.3
    assert 0.8 <= latency.min() < 0.82
    assert 1.18 < latency.max() <= 1.2
    assert len(set(east_west)) == len(seen)


def test_a_number_of_domains_of_one_s_own_draws_base_links_anew_at_every_reset():
    env = AstraSimEnv(num_domains=4, num_layers=4, bandwidth_fluctuation=0.0, latency_jitter=0.0)
    off = ~np.eye(4, dtype=bool)
    networks = [env.reset(seed=seed)[1] for seed in (0, None, None)]
    bandwidths = np.array([network["bandwidth_bytes_per_s"][off] for network in networks]) / GBPS
    latencies = np.array([network["latency_s"][off] for network in networks])
    assert len(np.unique(bandwidths)) == bandwidths.size
    assert 2 <= bandwidths.min() < bandwidths.max() <= 5
    assert 20e-3 <= latencies.min() < latencies.max() <= 100e-3


def test_edges_are_the_matrices_row_by_row():
    env = AstraSimEnv(num_layers=4, edges=True)
    seen, _ = env.reset(seed=0)
    np.testing.assert_array_equal(seen["edges"][:, 0], seen["state"][:9])
    np.testing.assert_array_equal(seen["edges"][:, 1], seen["state"][9:18])
    assert seen["edges"][:, 2].reshape(3, 3).tolist() == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]


@pytest.mark.parametrize("weights", [(0.4, 0.3, 0.3), (1.0, 0.0, 2.0)])
@pytest.mark.parametrize(
    ("devices", "gib", "misfits"), [(8, 80, {""}), (2, 80, {"", "devices"}), (8, 4, {"memory"})]
)
def test_the_reward_is_the_formula_of_what_info_says(weights, devices, gib, misfits):
    env = pair(devices=devices, gib=gib, weights=weights)
    rng, seen = np.random.default_rng(0), set()
    env.reset(seed=0)
    for cut in range(1, 10):
        placement = rng.integers(2, size=10) if cut % 2 else np.arange(10) >= cut
        _, reward, _, _, info = env.step(placement.astype(int))
        efficiency = (info["baseline_step_time_s"] - info["step_time_s"]) / info["baseline_step_time_s"]
        w1, w2, w3 = weights
        value = w1 * efficiency + w2 * info["utilization"] - w3 * info["cost"] / info["baseline_cost"]
        assert reward == pytest.approx(value if info["fits"] else min(-1, value), rel=1e-12)
        assert (info["cost_unit"], info["cost"]) == ("wan_bytes", info["wan_bytes"])
        assert info["fits"] == (info["misfit"] == "")
        seen.add(info["misfit"])
    assert seen == misfits


def test_the_baselines_score_what_they_must():
    env = pair(bandwidth_fluctuation=0.0, latency_jitter=0.0)
    env.reset(seed=0)
    home, uniform = (env.step(placement)[4] for placement in (home_placement(10), uniform_placement(10, 2)))
    assert home["time_baseline"] == "home"
    assert home["efficiency_term"] == 0.0
    assert home["cost_term"] == 0.0
    assert uniform["cost_term"] == 1.0


def test_where_home_does_not_fit_time_is_measured_against_the_uniform_placement():
    env = pair(gib=5, bandwidth_fluctuation=0.0, latency_jitter=0.0)
    env.reset(seed=0)
    _, reward, _, _, home = env.step(home_placement(10))
    _, _, _, _, uniform = env.step(uniform_placement(10, 2))
    assert (home["time_baseline"], home["fits"], uniform["fits"]) == ("uniform", False, True)
    assert reward <= -1
    assert uniform["efficiency_term"] == 0.0


@examples(20)
@given(st.lists(st.integers(0, 1), min_size=10, max_size=10), st.integers(0, 99))
def test_less_bandwidth_never_gives_more_reward(placement, seed):
    env = pair(latency_jitter=0.0)
    env.reset(seed=seed)
    steps = [env.step(placement) for _ in range(6)]
    # Every two networks of which one has less on both links.
    for (_, worse, *_, low), (_, better, *_, high) in permutations(steps, 2):
        if (low["bandwidth_bytes_per_s"] <= high["bandwidth_bytes_per_s"]).all():
            assert worse <= better + 1e-12


@examples(20)
@given(st.integers(0, 1), st.integers(0, 99))
def test_one_domain_costs_no_communication_and_does_not_feel_the_network(where, seed):
    env = pair()
    env.reset(seed=seed)
    steps = [env.step([where] * 10) for _ in range(3)]
    assert all(info["cost_term"] == info["wan_bytes"] == 0.0 for *_, info in steps)
    assert len({reward for _, reward, *_ in steps}) == 1


def test_messages_that_cross_one_link_share_it():
    env = pair(bandwidth_fluctuation=0.0, latency_jitter=0.0)
    env.reset(seed=0)
    once, thrice = (env.step(p)[4] for p in ([0] * 5 + [1] * 5, [0] * 3 + [1] * 2 + [0] * 2 + [1] * 3))
    message = 64 * 2**20 / (5 * GBPS)
    assert thrice["wan_bytes"] == 3 * once["wan_bytes"]
    # Per microbatch two activations and one gradient go one way, and the other way round: three messages a link.
    assert thrice["step_time_s"] > 8 * 3 * message > once["step_time_s"]


@given(st.lists(st.integers(0, 2), min_size=10, max_size=10))
def test_a_placement_becomes_one_stage_for_each_visit(placement):
    problem = Problem.of(fleet(domain("a", 8), domain("b", 2), domain("c", 16)), job())
    plan = plan_of(problem, placement)
    (pipeline,) = plan.pipelines
    laid = ["abc".index(s.domain) for s in pipeline.stages for _ in range(s.num_layers)]
    assert laid == placement
    assert all(one.domain != other.domain for one, other in pairwise(pipeline.stages))
    room = {"a": 8, "b": 2, "c": 16}
    over = any(count > room[name] for name, count in plan.devices().items())
    assert (why_not(problem, plan) == "devices") == over
    # Only visits can be too many: a domain never runs out by width or copies.
    assert not over or any(sum(s.domain == name for s in pipeline.stages) > room[name] for name in room)


def test_a_domain_alone_is_used_whole():
    problem = Problem.of(fleet(domain("a", 16), domain("b", 8)), job())
    (pipeline,) = plan_of(problem, home_placement(10)).pipelines
    assert (pipeline.stages[0].tensor_parallel, pipeline.replicas, pipeline.microbatches) == (8, 2, 32)


@given(st.integers(1, 40), st.integers(1, 9))
def test_uniform_shares_differ_by_one_layer_at_most(num_layers, num_domains):
    shares = np.bincount(uniform_placement(num_layers, num_domains), minlength=num_domains)
    assert shares.max() - shares.min() <= 1


def test_an_episode_is_truncated_and_never_ends_by_itself():
    env = AstraSimEnv(num_layers=4, episode_steps=3)
    for _ in range(2):
        env.reset(seed=0)
        ends = [env.step(home_placement(4))[2:4] for _ in range(3)]
        assert ends == [(False, False), (False, False), (False, True)]


def test_a_step_before_the_first_reset_is_refused():
    with pytest.raises(gymnasium.error.ResetNeeded):
        AstraSimEnv(num_layers=4).step([0] * 4)


@pytest.mark.parametrize("action", [[0, 0, 0], [0, 0, 0, 3], [0, 0, 0, -1], [0.5, 0, 0, 0]])
def test_what_is_no_placement_is_refused(action):
    env = AstraSimEnv(num_layers=4)
    env.reset(seed=0)
    with pytest.raises(UsageError, match="4 whole numbers from 0 to 2"):
        env.step(action)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"num_domains": 0}, "num_domains=0"),
        ({"episode_steps": 0}, "episode_steps=0"),
        ({"num_layers": 2}, "num_layers=2"),
        ({"weights": (0.4, 0.3)}, "three numbers"),
        ({"weights": (0.4, -0.3, 0.3)}, "three numbers"),
        ({"bandwidth_fluctuation": 1.0}, "bandwidth_fluctuation=1.0"),
        ({"latency_jitter": -0.1}, "latency_jitter=-0.1"),
        ({"backend": "astra"}, "unknown backend 'astra'"),
        ({"task_profile": "llama-3.1-71b"}, "no bundled model of that name"),
        ({"task_profile": job(), "num_layers": 11}, "the job's model has 10"),
        ({"fleet": fleet(domain("a"), domain("b"), links=link("a", "b", 5, 30)[:1])}, "link"),
    ],
)
def test_arguments_that_cannot_be_used_are_named(arguments, said):
    with pytest.raises(UsageError, match=said):
        AstraSimEnv(**arguments)


ASTRA_BACKENDS = ["aware", "unaware", "ns3"]


def binaries(monkeypatch, tmp_path, *, mode="right"):
    """Let all binaries of ASTRA-sim be fakes."""
    for backend in ASTRA_BACKENDS:
        fake(tmp_path / "bin", backend, mode)
    monkeypatch.setenv("STRATA_ASTRA_SIM", str(tmp_path / "bin"))
    monkeypatch.setenv("STRATA_NS3", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize("backend", ASTRA_BACKENDS)
def test_a_backend_that_is_not_here_says_so_at_construction(monkeypatch, tmp_path, backend):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("STRATA_ASTRA_SIM", raising=False)
    monkeypatch.delenv("STRATA_NS3", raising=False)
    with pytest.raises(MissingPart, match=f"no ASTRA-sim binary of the {backend} backend"):
        AstraSimEnv(num_layers=4, backend=backend)


@pytest.mark.long("waits for a binary that hangs")
@pytest.mark.parametrize(
    ("mode", "said"),
    [("hangs", "did not end within 8 s and was stopped; it printed nothing"), ("silent", "ranks never finished")],
)
def test_a_binary_that_hangs_or_prints_nothing_is_an_error_within_the_limit(monkeypatch, tmp_path, mode, said):
    binaries(monkeypatch, tmp_path, mode=mode)
    with pytest.raises(StrataError, match=said):
        pair(backend="unaware", time_limit_s=8.0 if mode == "hangs" else 120.0)


@pytest.mark.parametrize("backend", ASTRA_BACKENDS)
def test_astra_is_asked_for_any_placement_and_counts_cycles(monkeypatch, tmp_path, backend):
    binaries(monkeypatch, tmp_path)
    env, ours = (
        pair(backend=name, bandwidth_fluctuation=0.0, latency_jitter=0.0) for name in (backend, "analytic")
    )
    env.reset(seed=0)
    ours.reset(seed=0)
    home, uniform, back = (env.step(p)[4] for p in ([0] * 10, [0] * 5 + [1] * 5, [0] * 4 + [1] * 3 + [0] * 3))
    expected = ours.step([0] * 10)[4]
    assert (home["backend"], home["cost_unit"]) == (backend, "comm_cycles")
    assert home["cost_term"] == 0.0
    assert home["step_time_s"] == pytest.approx(expected["step_time_s"], rel=1e-4)
    assert home["utilization"] == pytest.approx(expected["utilization"], rel=1e-4)
    assert uniform["cost_term"] == 1.0
    assert uniform["cost"] == pytest.approx(uniform["baseline_cost"])
    # One rank a stage: what two and three of them do not compute.
    assert 0 < uniform["cost"] < 2e9 * uniform["step_time_s"]
    assert uniform["cost"] < back["cost"] < 3e9 * back["step_time_s"]
    assert back["wan_bytes"] == 2 * uniform["wan_bytes"]


def test_ns3_knows_each_pair_of_domains_where_the_others_take_the_worst_link_used(monkeypatch, tmp_path):
    binaries(monkeypatch, tmp_path)
    thin = link("a", "b", 1, 30)
    three = fleet(*(domain(name) for name in "abc"), links=[*thin, *link("b", "c", 5, 10), *link("a", "c", 5, 10)])
    steps = {}
    for backend in ("unaware", "ns3"):
        env = AstraSimEnv(
            task_profile=job(layers(hidden_mib=64), batch=8), fleet=three, backend=backend,
            bandwidth_fluctuation=0.0, latency_jitter=0.0,
        )  # fmt: skip
        env.reset(seed=0)
        quick, both = (env.step(p)[4]["step_time_s"] for p in ([1] * 5 + [2] * 5, [0] * 3 + [1] * 3 + [2] * 4))
        steps[backend] = both / quick
    assert 1 < steps["ns3"] < steps["unaware"]


@examples(20)
@given(st.lists(st.integers(0, 1), min_size=10, max_size=10), st.integers(0, 99))
def test_events_agree_where_nothing_meets_and_are_no_slower_than_always_sharing(placement, seed):
    events, analytic = pair(backend="events"), pair()
    events.reset(seed=seed)
    analytic.reset(seed=seed)
    simulated, computed = events.step(placement)[4], analytic.step(placement)[4]
    assert simulated["cost"] == simulated["wan_bytes"] == computed["wan_bytes"]
    if computed["stages"] <= 2:
        assert simulated["step_time_s"] == pytest.approx(computed["step_time_s"], rel=1e-9)
    assert simulated["step_time_s"] <= computed["step_time_s"] * (1 + 1e-9)
