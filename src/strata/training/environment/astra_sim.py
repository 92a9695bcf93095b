"""`strata/AstraSim-v0`: seed 001's environment, a domain for each layer against a network that fluctuates.

Where the seed's own text contradicts itself, this is what holds here: an action is judged on the network it was
chosen for, the one of the observation before; nothing leaves the observation's Box; R_eff is measured against a
named step, not against 1e7 cycles; communication cost against the uniform placement's, in one unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Self

import gymnasium
import numpy as np
from gymnasium import spaces

from strata.errors import UsageError
from strata.fleet.dynamics.noise import Uniform
from strata.fleet.fleet import Fleet
from strata.fleet.schema import load_fleet
from strata.simulate.astra.referee import TIME_LIMIT_S
from strata.training.environment import backends
from strata.training.environment.network import (
    SEED_BANDWIDTH_BYTES_PER_S,
    SEED_LATENCY_S,
    Caps,
    Noise,
    matrices,
    seed_network,
)
from strata.training.environment.placement import home_placement, plan_of, uniform_placement, why_not
from strata.training.plan.exact.problem import Problem
from strata.workload.huggingface import model
from strata.workload.job import TrainingJob
from strata.workload.layer_table import layer_table

Info = dict[str, Any]

UNFIT_REWARD: Final = -1.0
"""A placement whose devices or memory do not suffice is worth this at most, and less where its formula says so.

At most, not exactly: placements that cross domains often score far below -1 though they fit, and an agent that
starts among them would be drawn to whatever does not fit, and see no slope there."""

SEQUENCE_LENGTH: Final = 4096
GLOBAL_BATCH: Final = 64
"""Of a job given by its model alone: 262,144 tokens a step."""

_SEED_NAMES: Final = {"llama_70b": "llama-3.1-70b"}


@dataclass(frozen=True, slots=True)
class Baselines:
    """What rewards are measured against, both on the base network.

    time_name: "home" or "uniform", whose step takes `step_time_s`; cost: of the uniform placement.
    """

    time_name: str
    step_time_s: float
    cost: float

    @classmethod
    def of(cls, problem: Problem, run: backends.Run) -> Self:
        """Return those of a fleet and job; `run` says how long plans take."""
        layers, domains = len(problem.job.layers), len(problem.fleet.domains)
        home = plan_of(problem, home_placement(layers))
        spread = run(problem.fleet, problem.job, plan_of(problem, uniform_placement(layers, domains)))
        if why_not(problem, home):
            return cls("uniform", spread.step_time_s, spread.cost)
        return cls("home", run(problem.fleet, problem.job, home).step_time_s, spread.cost)

    def terms(self, step_time_s: Any, utilization: Any, cost: Any) -> tuple[Any, Any, Any]:
        """Return R_eff, U and C of a step, or of arrays of them."""
        return 1 - step_time_s / self.step_time_s, utilization, cost / self.cost if self.cost else 0.0 * cost


class AstraSimEnv(gymnasium.Env[Any, Any]):  # type: ignore[misc]
    """One step is one training step of a job whose layers are placed on K domains.

    Action: MultiDiscrete([K] * L), the domain of each layer; layer 0 is the embedding, the last the head.
    Observation: Box [0, 1] of 2 K² + K: bandwidth and latency matrices (row: source), each over what it can be at
    most, then the share of the layers each domain had in the last placement (zeros before the first). With `edges`
    a Dict of this as `state` and `edges` [K², 3], row i K + j: bandwidth, latency, and 1 where i is not j.
    Reward: w1 R_eff + w2 U - w3 C with R_eff = (T_base - T) / T_base, U the utilisation and C the communication
    cost over that of the uniform placement: wide-area bytes, or with an ASTRA-sim backend the cycles its ranks do
    not compute. `info` holds each of these and the network they were reached on; that of `reset` holds the network
    of the first step.

    num_domains: 3 is the network of seed 001 §3.1; any other number draws base links as its §3.3 does, at reset.
    num_layers: cuts the model or goes on with layers like its own; None takes it as it is.
    task_profile: a model's name or config.json, or a job. fleet: instead of the seed's; num_domains is then its.
    backend: "analytic", "events", or a binary of ASTRA-sim: "aware", "unaware" (congestion), "ns3". time_limit_s:
    after which a run of it is stopped and an error.
    episode_steps: after so many the episode is truncated; it never terminates.
    Raises UsageError for arguments that cannot be used, MissingPart where the backend is not here.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(
        self,
        num_domains: int = 3,
        num_layers: int | None = None,
        task_profile: str | TrainingJob = "llama-3.1-70b",
        bandwidth_fluctuation: float = 0.3,
        *,
        latency_jitter: float = 0.2,
        backend: str = "analytic",
        time_limit_s: float = TIME_LIMIT_S,
        fleet: Fleet | None = None,
        weights: Sequence[float] = (0.4, 0.3, 0.3),
        episode_steps: int = 100,
        edges: bool = False,
        render_mode: str | None = None,
    ) -> None:
        _check(num_domains, weights, episode_steps, bandwidth_fluctuation, latency_jitter)
        self.render_mode = render_mode
        self.backend = backends.backend(backend, time_limit_s=time_limit_s)
        self.job = _job(task_profile, num_layers)
        self.weights, self.episode_steps, self.edges = tuple(weights), episode_steps, edges
        self._noise = Noise(Uniform(bandwidth_fluctuation), Uniform(latency_jitter))
        self._fixed = load_fleet("seed") if fleet is None and num_domains == 3 else fleet
        shape = (num_domains, num_domains)
        widest = self._fixed or seed_network(
            np.full(shape, SEED_BANDWIDTH_BYTES_PER_S[1]), np.full(shape, SEED_LATENCY_S[1])
        )
        self._caps = Caps.of(widest, self._noise)
        self._start(widest)  # says at once what cannot be used
        domains, layers = len(widest.domains), len(self.job.layers)
        self.action_space = spaces.MultiDiscrete([domains] * layers)
        state = spaces.Box(0.0, 1.0, (2 * domains * domains + domains,), np.float32)
        self.observation_space = state
        if edges:
            links = spaces.Box(0.0, 1.0, (domains * domains, 3), np.float32)
            self.observation_space = spaces.Dict({"state": state, "edges": links})
        self._now: Fleet | None = None

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Begin an episode. All chance comes from the generator `seed` starts; there are no options."""
        super().reset(seed=seed)
        if self._fixed is None:
            shape = self._problem.fleet.bandwidth_bytes_per_s().shape
            bandwidth = self.np_random.uniform(*SEED_BANDWIDTH_BYTES_PER_S, size=shape)
            latency = self.np_random.uniform(*SEED_LATENCY_S, size=shape)
            self._start(seed_network(bandwidth, latency))
        self._loads = np.zeros(len(self._problem.fleet.domains))
        self._steps = 0
        return self._observation(self.renew()), self._context(self.network)

    @property
    def problem(self) -> Problem:
        """The base network and the job."""
        return self._problem

    @property
    def network(self) -> Fleet:
        """The network observed last, on which the next action is judged."""
        if self._now is None:
            raise gymnasium.error.ResetNeeded("call reset() before step()")
        return self._now

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        """Run one training step of a placement on the network observed last, then draw the next network."""
        reward, info = self.judge(action)
        placement = np.asarray(action)
        self._loads = np.bincount(placement, minlength=len(self._loads)) / len(placement)
        self._steps += 1
        return self._observation(self.renew()), reward, False, self._steps >= self.episode_steps, info

    def renew(self) -> Fleet:
        """Return the next network, drawn whether or not an action was taken on the last one."""
        self._now = self._noise.draw(self._problem.fleet, self.np_random)
        return self._now

    def judge(self, action: Any) -> tuple[float, Info]:
        """Return the reward and the `info` of a placement on the network observed last, which stays as it is."""
        network, placement = self.network, np.asarray(action)
        if not self.action_space.contains(placement):
            shape = f"{len(self.job.layers)} whole numbers from 0 to {len(self._loads) - 1}"
            raise UsageError(f"{action!r} is not a valid placement: {shape}, one per layer")
        plan = plan_of(self._problem, placement.tolist())
        outcome, misfit = self.backend.run(network, self.job, plan), why_not(self._problem, plan)
        terms = self._baselines.terms(outcome.step_time_s, outcome.utilization, outcome.cost)
        reward = weighted(self.weights, *terms)
        info = {
            **self._context(network),
            "step_time_s": outcome.step_time_s,
            "utilization": outcome.utilization,
            "wan_bytes": outcome.wan_bytes,
            "cost": outcome.cost,
            "efficiency_term": terms[0],
            "cost_term": terms[2],
            "stages": len(plan.pipelines[0].stages),
            "fits": not misfit,
            "misfit": misfit,
        }
        return float(min(reward, UNFIT_REWARD) if misfit else reward), info

    def _start(self, fleet: Fleet) -> None:
        """Take a base network and run the baselines on it. Raises UsageError where not every placement can run."""
        problem = Problem.of(fleet, self.job)
        if problem.excluded:
            raise UsageError(
                "any layer may be placed on any domain, but " + "; ".join(map(str, problem.excluded)),
                hint="a fleet whose domains are all linked, of accelerators that are known",
            )
        self._problem, self._baselines = problem, Baselines.of(problem, self.backend.run)

    def _context(self, fleet: Fleet) -> Info:
        bandwidth, latency = matrices(fleet)
        return {
            "backend": self.backend.name,
            "bandwidth_bytes_per_s": bandwidth,
            "latency_s": latency,
            "time_baseline": self._baselines.time_name,
            "baseline_step_time_s": self._baselines.step_time_s,
            "cost_baseline": "uniform",
            "baseline_cost": self._baselines.cost,
            "cost_unit": self.backend.cost_unit,
        }

    def _observation(self, fleet: Fleet) -> Any:
        bandwidth, latency = self._caps.shares(*matrices(fleet))
        state = np.concatenate([bandwidth.ravel(), latency.ravel(), self._loads]).astype(np.float32)
        if not self.edges:
            return state
        between = 1.0 - np.eye(len(self._loads))
        edges = np.stack([bandwidth.ravel(), latency.ravel(), between.ravel()], axis=1)
        return {"state": state, "edges": edges.astype(np.float32)}


def weighted(weights: Sequence[float], efficiency: Any, utilization: Any, cost: Any) -> Any:
    """Return R = w1 R_eff + w2 U - w3 C (seed 000 §2.1), of numbers or arrays."""
    w1, w2, w3 = weights
    return w1 * efficiency + w2 * utilization - w3 * cost


def _check(
    num_domains: int, weights: Sequence[float], episode_steps: int, bandwidth: float, latency: float
) -> None:
    if num_domains < 1 or episode_steps < 1:
        raise UsageError(f"num_domains={num_domains}, episode_steps={episode_steps}: at least 1 each")
    if len(weights) != 3 or min(weights) < 0:
        raise UsageError(f"weights={tuple(weights)}: three numbers of at least 0", hint="(0.4, 0.3, 0.3)")
    for name, value in (("bandwidth_fluctuation", bandwidth), ("latency_jitter", latency)):
        if not 0 <= value < 1:
            raise UsageError(f"{name}={value} must be at least 0 and below 1", hint="0.3")


def _job(profile: str | TrainingJob, num_layers: int | None) -> TrainingJob:
    """Return the job of a model, cut or extended to a number of layers, embedding and head counted."""
    if isinstance(profile, TrainingJob):
        if num_layers not in (None, len(profile.layers)):
            raise UsageError(f"num_layers={num_layers}, but the job's model has {len(profile.layers)}")
        return profile
    spec = model(_SEED_NAMES.get(profile, profile))
    if num_layers is not None:
        if num_layers < 3:
            raise UsageError(f"num_layers={num_layers}: at least an embedding, one layer and a head")
        spec = replace(spec, num_layers=num_layers - 2)
    table = layer_table(spec, SEQUENCE_LENGTH)
    return TrainingJob(spec.name, table, SEQUENCE_LENGTH, spec.divided_heads, GLOBAL_BATCH, model_name=spec.name)
