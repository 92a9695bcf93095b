"""What sharings of a batch use: devices and money at least, and what of the devices' time is of use at most."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Final

import numpy as np

from strata.arrays import Bools, Floats, Ints
from strata.simulate.collective import eta
from strata.training.plan.exact.config import CommonConfig
from strata.training.plan.exact.groups import UnitGroups
from strata.training.plan.exact.shapes import Rates, Unit
from strata.training.plan.exact.sharing_plans import Way
from strata.training.plan.exact.tables import ShapeTables

ROUNDING: Final = 1e-12


class SharingUse:
    """Bounds for all groups of units at once, given a bound on the step time of each."""

    def __init__(self, space: UnitGroups, tables: ShapeTables, rates: Mapping[CommonConfig, Rates]) -> None:
        self.space, self.problem, self.tables, self.rates = space, space.problem, tables, rates
        self._known_devices: dict[CommonConfig, tuple[Floats, Floats]] = {}

    def least_usd(self, way: Way, step_s: Floats) -> Floats:
        """Return what sharings that take so long [groups] cost at least [USD]: devices and gradient sums.

        The fewest devices that shapes of the units have, for the time of a step; or the work of the batch where it
        costs least.
        """
        with np.errstate(invalid="ignore"):  # of none that is possible the time is inf, and the money NaN
            least, _ = self._devices(way.common)
            devices_usd = np.maximum(self._work_usd(way.common), least @ self._prices_usd * step_s)
        return np.asarray(devices_usd + self.sum_usd / (way.gradient_compression * way.local_steps))

    def most_utilization(self, way: Way, step_s: Floats) -> Floats:
        """Return the utilisation that sharings which take so long [groups] have at most.

        Σ (device-seconds of use in d / those of a sample in d) is at most the batch (`ComputeCost`), and in d no
        more than its devices have in the step: most is of use where samples go to the domains first whose
        devices take longest for one.
        """
        useful_s = self.rates[way.common].sample_useful_s
        least, most = self._devices(way.common)
        left, use_s = np.full(len(step_s), float(self.problem.job.global_batch)), np.zeros(len(step_s))
        with np.errstate(invalid="ignore"):  # of none that is possible the time is inf
            for at in np.argsort(-useful_s, kind="stable"):
                if useful_s[at] <= 0:
                    break
                index = self.space.members[at]
                samples = np.minimum(left, most[:, index] * step_s / (eta(way.local_steps) * useful_s[at]))
                left, use_s = left - samples, use_s + samples * useful_s[at]
            share = use_s / (least.sum(axis=1) * step_s)
        return np.asarray(np.where(np.isfinite(share), np.minimum(1.0, share * (1 + ROUNDING)), 1.0))

    def of_devices(self, way: Way, group: int, devices: Floats, step_s: float) -> tuple[float, float]:
        """Return the same two of one group where it has so many devices of each domain [domains] at least: what is
        of use at most, and what it costs."""
        sample_useful_s = self.rates[way.common].sample_useful_s
        of_group = self._domains[group, list(self.space.members)]
        useful_s = self.problem.job.global_batch * float(sample_useful_s[of_group].max(initial=0.0))
        share = useful_s / (float(devices.sum()) * step_s) * (1 + ROUNDING)
        usd = float(devices @ self._prices_usd) * step_s
        return min(1.0, share), usd + self.sum_usd[group] / (way.gradient_compression * way.local_steps)

    def _devices(self, common: CommonConfig) -> tuple[Floats, Floats]:
        """Return how many devices of each domain the shapes of each group have, the fewest and the most
        [groups, domains]; of units without shapes none."""
        if common not in self._known_devices:
            units, of_kinds = self.space.units, [self._devices_of(unit, common) for unit in self.tables.kinds]
            devices = np.zeros((2, len(units), len(self.problem.fleet.domains)))
            for row, (unit, kind) in enumerate(zip(units, self.tables.kind.tolist(), strict=True)):
                devices[:, row, list(unit)] = of_kinds[kind]
            least, most = (self.space.member @ each for each in devices)
            self._known_devices[common] = least, most
        return self._known_devices[common]

    def _devices_of(self, unit: Unit, common: CommonConfig) -> Ints:
        problem, domains = self.problem, [self.problem.fleet.domains[i] for i in unit]
        settings = self.tables.shapes.shapes.settings(unit, common)
        each = [
            [problem.stages(d, c) * problem.stage_devices(d, c) * c.data_parallel for d in domains]
            for c in settings
        ]
        devices = np.array(each, dtype=np.int64) if each else np.zeros((1, len(unit)), dtype=np.int64)
        return np.stack([devices.min(axis=0), devices.max(axis=0)])

    def _work_usd(self, common: CommonConfig) -> Floats:
        """Return what the batch costs at least in the domains of each group [groups], 0 without prices."""
        if not self.is_priced:
            return np.zeros(len(self.space.groups))
        sample_usd = np.full(len(self.problem.fleet.domains), np.inf)
        sample_usd[list(self.space.members)] = self.rates[common].sample_usd
        return np.asarray(self.problem.job.global_batch * np.where(self._domains, sample_usd, np.inf).min(axis=1))

    @property
    def is_priced(self) -> bool:
        """Whether all domains have a price."""
        domains = self.problem.fleet.domains
        return all(domains[i].price_usd_per_device_hour is not None for i in self.space.members)

    @cached_property
    def _prices_usd(self) -> Floats:
        """What a device-second costs [domains], 0 where not all have a price."""
        prices = [domain.price_usd_per_device_hour or 0.0 for domain in self.problem.fleet.domains]
        return np.array(prices) / 3600 * (self.is_priced * (1 - ROUNDING))

    @cached_property
    def _domains(self) -> Bools:
        """Which domains of the fleet each group has [groups, domains]."""
        domains = np.zeros((len(self.space.groups), len(self.problem.fleet.domains)), dtype=bool)
        for row, group in enumerate(self.space.groups):
            domains[row, [i for unit in group for i in unit]] = True
        return domains

    @cached_property
    def sum_usd(self) -> Floats:
        """What a whole gradient sum between the units of each group costs at least [groups].

        By every algorithm of `simulate.collective` D units send 2 (D - 1) times what is summed, between the first
        domains of their pipelines.
        """
        least = np.zeros(len(self.space.groups))
        price = np.where(self.space.bandwidth > 0, self.problem.fleet.price_usd_per_byte(), np.inf)
        for row, group in enumerate(self.space.groups):
            first = [unit[0] for unit in group]
            least[row] = 2 * (len(group) - 1) * price[np.ix_(first, first)].min()
        return least * self.space.gradient_bytes * (1 - ROUNDING)
