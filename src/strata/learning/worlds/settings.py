"""What the simulated world is like: links, loads, jobs. Every figure is assumed; no measured series is known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Self

from strata.errors import UsageError
from strata.workload.arrivals import TRACES


@dataclass(frozen=True, slots=True)
class WorldSettings:
    """One step of the world is `interval_s`; an episode has `episode_steps` of them.

    steps_per_decision: from one turn of a job to its next, what options are looked ahead and switches paid in.
    regimes: whether links go through good, degraded and bad; each pair of domains has its own chance to stay,
        between the two ends of `stay`. precursor_share: of the pairs, those whose episodes are announced.
    noise_sigma, noise_tau_s: Ornstein-Uhlenbeck noise of the logarithm of bandwidth, on top.
    bandwidth_half_width, latency_half_width: uniform noise drawn anew at every step, the seeds' (0.3, 0.2).
    diurnal_amplitude: of the daily wave, each pair with a phase of its own.
    observed_sigma: of the logarithm of measured bandwidth. stale_steps: how old what is seen of links is.
    missing_share: of the measurements, those that are lost (NaN).
    load_half_width: the factor on the compute time of each domain is max(1, 1 ± this), drawn at every step.
    jobs_per_hour: 0 is one job that is there from the start and never ends. slots: J, jobs that may run at once.
    endless: whether in each slot there is a job from the start that never ends, all of one kind.
    trace, least_run_s: where run times come from, and the shortest job that is worth planning.
    deadline_share, deadline_slack: of the jobs, those with a deadline, and how many times their run time on the
        best single domain it is away at most. deadline_penalty: in steps of efficiency.
    background_share: devices of each domain that small local jobs want on average, background_cap at most.
    outages_per_day, outage_s: how often each domain is lost as a whole, and for how long on average.
    restart_s: pause of a switch that moves layers, on top of moving the weights.
    preference: weights of (efficiency, utilisation, communication cost); None draws them for every episode.
    """

    interval_s: float = 300.0
    episode_steps: int = 128
    steps_per_decision: int = 1
    regimes: bool = True
    stay: tuple[float, float] = (0.5, 0.97)
    precursor_share: float = 0.0
    noise_sigma: float = 0.1
    noise_tau_s: float = 1800.0
    bandwidth_half_width: float = 0.0
    latency_half_width: float = 0.0
    diurnal_amplitude: float = 0.0
    observed_sigma: float = 0.0
    stale_steps: int = 0
    missing_share: float = 0.0
    load_half_width: float = 0.0
    jobs_per_hour: float = 0.0
    slots: int = 1
    endless: bool = False
    trace: str = "philly"
    least_run_s: float = 3600.0
    deadline_share: float = 0.2
    deadline_slack: tuple[float, float] = (1.0, 2.0)
    deadline_penalty: float = 10.0
    background_share: float = 0.0
    background_cap: float = 0.25
    outages_per_day: float = 0.0
    outage_s: float = 3600.0
    restart_s: float = 60.0
    preference: tuple[float, float, float] | None = (1.0, 0.0, 0.0)

    def __post_init__(self) -> None:
        if self.trace not in TRACES:
            raise UsageError(f"no trace is named {self.trace!r}", hint=f"one of {', '.join(TRACES)}")
        if self.slots < 1 or self.episode_steps < 1 or self.interval_s <= 0:
            raise UsageError("a world needs at least one slot, one step and a positive interval")
        if self.endless and self.jobs_per_hour:
            raise UsageError("no job arrives where jobs never end", hint="jobs_per_hour=0")
        if self.jobs_per_hour == 0 and self.slots > 1 and not self.endless:
            raise UsageError("more than one slot needs jobs that arrive", hint="jobs_per_hour=1")

    def with_jobs(self, jobs: int) -> Self:
        """Return the same with so many endless jobs, each in turn once in the interval there was."""
        # Links change as fast as before: the chance to stay over `jobs` steps is what it was over one.
        low, high = (1 / 3 + 2 / 3 * ((end - 1 / 3) * 3 / 2) ** (1 / jobs) for end in self.stay)
        return replace(
            self, interval_s=self.interval_s / jobs, steps_per_decision=jobs, stay=(low, high), slots=jobs,
            endless=True, stale_steps=self.stale_steps * jobs, episode_steps=self.episode_steps * jobs,
        )  # fmt: skip

    def by_decision(self) -> Self:
        """Return the same with one step a decision: `with_jobs` the other way round, links and probes alone."""
        jobs = self.steps_per_decision
        low, high = (1 / 3 + 2 / 3 * ((end - 1 / 3) * 3 / 2) ** jobs for end in self.stay)
        return replace(
            self, interval_s=self.interval_s * jobs, steps_per_decision=1, stay=(low, high),
            stale_steps=self.stale_steps // jobs,
        )  # fmt: skip


_ONE_JOB: Final = {
    # The seeds: bandwidth ±30 % and latency ±20 %, drawn anew at every step.
    "seed30": WorldSettings(regimes=False, noise_sigma=0.0, bandwidth_half_width=0.3, latency_half_width=0.2),
    "load20": WorldSettings(regimes=False, noise_sigma=0.0, load_half_width=0.2),
    "regimes": WorldSettings(),
    "precursor": WorldSettings(precursor_share=0.75),
    "diurnal": WorldSettings(diurnal_amplitude=0.4),
    "stale": WorldSettings(observed_sigma=0.25, stale_steps=1, missing_share=0.02),
    "outage": WorldSettings(outages_per_day=1.0),
    "multijob": WorldSettings(slots=4, jobs_per_hour=0.5, background_share=0.15, load_half_width=0.1),
}

PRESETS: Final = {
    **_ONE_JOB,
    **{f"{name}_4_jobs": _ONE_JOB[name].with_jobs(4) for name in ("seed30", "regimes", "stale", "outage")},
}
"""Named worlds: the seeds' noise, and the dynamics under which keeping or switching really matters."""
