"""Puts a running scheduler together: fleet file, store, drivers, probes, policy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from strata.control.core import Scheduler
from strata.control.daemon import Daemon, Sites, steady_clock
from strata.control.driver import Driver
from strata.control.drivers.launch import Workplace, safe
from strata.control.drivers.local import LocalDriver
from strata.control.drivers.slurm import SlurmDriver
from strata.control.meeting import apart
from strata.control.plans import planner
from strata.control.policies import PolicyName, choose_by, inside_by
from strata.control.probes import SHARE, Prober
from strata.control.store import Store
from strata.decision import Reason
from strata.errors import UsageError
from strata.fleet.fleet import Pair
from strata.fleet.schema import DriverEntry, KubeEntry, LocalEntry, SlurmEntry, load_drivers, load_fleet


@contextmanager
def assembled(
    source: Path,
    store: Path,
    *,
    policy: PolicyName,
    interval_s: float,
    probe_every_s: float,
    probe_share: float = SHARE,
) -> Iterator[Daemon]:
    """Yield a daemon that `run` starts. Raises BadFile and UsageError for files that cannot be used."""
    clock, folder = steady_clock(), store.resolve().with_suffix(".strata")
    cannot_meet: dict[Pair, Reason] = {}
    if not store.exists() and (folder / "domains").exists():  # attempts there have the ids that ours would have
        raise UsageError(f"{folder} is of a store that is gone", hint=f"put {store} back, or move the folder")
    with ExitStack() as stack:

        def read() -> Sites:
            fleet, entries = load_fleet(source), load_drivers(source)
            if not entries:
                raise UsageError(
                    f"{source}: no domain says what starts work in it, so it can be planned for and not run on",
                    hint="driver: {kind: local} in a domain",
                )
            nonlocal cannot_meet
            cannot_meet = apart(entries)
            workplace = Workplace(folder, fleet, {name: entry.address for name, entry in entries.items()})
            drivers = {name: _driver(name, entry, workplace, source.parent) for name, entry in entries.items()}
            own = stack.enter_context(ExitStack())
            prober = Prober(fleet, entries, clock=clock, every_s=probe_every_s, share=probe_share)
            own.enter_context(prober)
            return Sites(fleet.only(entries), drivers, prober.probe, own.close)

        sites = read()
        kept = stack.enter_context(Store(store))
        _check_is_newest(kept, store, folder)
        plans = planner(lambda: cannot_meet)
        scheduler = Scheduler(choose_by(policy), plans, interval_s, inside=inside_by(policy))
        yield Daemon(kept, scheduler, sites, reread=read, probe_every_s=probe_every_s, clock=clock)


def _check_is_newest(kept: Store, store: Path, folder: Path) -> None:
    """Refuse a store that does not know all attempts of its folder: it would give their ids to others."""
    known = {safe(attempt) for attempt in kept.attempt_ids()}
    later = sorted(part.name for part in (folder / "domains").glob("*/*") if part.name not in known)
    if later:
        raise UsageError(
            f"{store} is older than {folder}: it does not know the attempt {later[0]}, which ran there",
            hint="put the newer store back, or end what runs there and move the folder",
        )


def _driver(name: str, entry: DriverEntry, workplace: Workplace, base: Path) -> Driver:
    """Return what runs work in a domain. Raises UsageError and MissingPart where it cannot from here."""
    match entry:
        case LocalEntry():
            return LocalDriver(name, workplace, entry.namespace, entry.interface)
        case SlurmEntry():
            conf = str((base / entry.conf).resolve()) if entry.conf else None
            slurm = SlurmDriver(name, workplace, entry.model_copy(update={"conf": conf}))
            slurm.check()
            return slurm
        case KubeEntry():
            # Imported where it is used: lightkube is an extra.
            from strata.control.drivers.kube import KubeDriver

            config = str((base / entry.kubeconfig).resolve()) if entry.kubeconfig else None
            kube = KubeDriver(name, workplace, entry.model_copy(update={"kubeconfig": config}))
            kube.check()
            return kube
