"""What the API shows of a running scheduler: plain data for JSON, and what tables are made of."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from strata.control import links
from strata.control.daemon import Daemon
from strata.control.measured import Measured
from strata.control.outlook import AHEAD
from strata.control.state import Attempt, JobPhase, LinkEstimate
from strata.control.store import KeptJob
from strata.errors import UsageError
from strata.training.plan import explain


def jobs_view(daemon: Daemon) -> list[dict[str, Any]]:
    """Return all jobs, as they were submitted; one that no turn has seen yet is queued."""
    current = {attempt.job: attempt for attempt in daemon.snapshot.attempts.values()}
    return [_job(kept, current.get(kept.name)) for kept in daemon.store.jobs()]


def job_view(daemon: Daemon, name: str) -> dict[str, Any]:
    """Return one job with its attempts and the decisions about it. Raises UsageError where there is none."""
    known = daemon.store.jobs(name)
    if not known:
        raise UsageError(f"there is no job {name!r}", hint="strata jobs")
    attempts = daemon.store.attempts(name)
    kept = daemon.store.decisions(name)
    return {
        **_job(known[0], attempts[-1] if attempts else None),
        "attempts": [_attempt(attempt) for attempt in attempts],
        "decisions": [{"at_s": item.at_s, **item.decision} for item in kept],
    }


def decisions_view(daemon: Daemon, *, limit: int) -> list[dict[str, Any]]:
    """Return the newest decisions about any job, newest first."""
    return [{"at_s": kept.at_s, "job": kept.job, **kept.decision} for kept in daemon.store.newest_decisions(limit)]


def prospects_view(daemon: Daemon, name: str) -> list[dict[str, Any]]:
    """Return why a job could never run on this fleet, and what would help. Raises UsageError as `job_view`."""
    job = daemon.snapshot.jobs.get(name)
    if job is None:
        job_view(daemon, name)
        return []  # no turn has seen it yet, or it is over
    return [reason.to_dict() for reason in daemon.refusals(job.spec)]


def domains_view(daemon: Daemon) -> list[dict[str, Any]]:
    """Return every domain that runs work, and what of it our jobs use."""
    used: dict[str, int] = {}
    for attempt in daemon.snapshot.attempts.values():
        if not attempt.is_over:
            for name, devices in attempt.plan.devices().items():
                used[name] = used.get(name, 0) + devices
    views = [(name, asdict(view)) for name, view in daemon.snapshot.domains.items()]
    return [
        {key: item for key, item in view.items() if key != "recent"} | {"num_used": used.get(name, 0)}
        for name, view in views
    ]


def links_view(daemon: Daemon) -> list[dict[str, Any]]:
    """Return what is believed of every link, how much of it jobs fill, and what is expected AHEAD decisions on.

    A link that was never measured (`seen_s` is null) is believed to be as the fleet file says.
    """
    state, decisions = daemon.snapshot, daemon.scheduler
    loads = Measured(state, decisions.plans).loads()
    expected = links.expected(state.fleet, state.links, AHEAD)
    views = []
    for (pair, link), load, ahead in zip(state.fleet.links.items(), loads, expected, strict=True):
        estimate = state.links.get(pair, LinkEstimate())
        views.append({
            "source": pair[0], "dest": pair[1], "factor": estimate.factor, "spread": estimate.spread,
            "bandwidth_bytes_per_s": link.bandwidth_bytes_per_s * estimate.factor,
            "latency_s": link.latency_s if estimate.latency_s is None else estimate.latency_s,
            "seen_s": estimate.seen_s, "since_s": estimate.since_s, "load": round(float(load), 4),
            "expected_factor": round(float(ahead), 4), "expected_in_s": AHEAD * decisions.interval_s,
        })  # fmt: skip
    return views


def _job(kept: KeptJob, attempt: Attempt | None) -> dict[str, Any]:
    none: dict[str, Any] = {"steps_done": 0, "repeated_steps": 0, "attempts": 0, "failures": 0}
    state, run = {"phase": JobPhase.QUEUED, **none, **kept.state}, kept.run
    running = attempt if state["phase"] == JobPhase.RUNNING else None
    return {
        "name": kept.name,
        "phase": state["phase"],
        "owner": run.get("owner", ""),
        "priority": run.get("priority", 0),
        "can_resume": run.get("resume", False),
        "submitted_s": kept.submitted_s,
        "steps": run["steps"],
        "steps_done": max(state["steps_done"], running.step) if running else state["steps_done"],
        "repeated_steps": state["repeated_steps"],
        "attempts_made": state["attempts"],
        "failures": state["failures"],
        "domains": list(running.plan.domains) if running else [],
        "step_time_s": running.step_time_s if running else None,
        "is_stopping": bool(running and running.is_stopping),
    }


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "id": attempt.id, "number": attempt.number, "started_s": attempt.started_s, "from_step": attempt.from_step,
        "step": attempt.step, "checkpoint_step": attempt.checkpoint_step, "step_time_s": attempt.step_time_s,
        "is_stopping": attempt.is_stopping, "reason": attempt.reason, "plan": attempt.plan.to_dict(),
        "devices": {name: list(numbers) for name, numbers in attempt.devices.items()},
        "plan_name": explain.name(attempt.plan), "num_devices": attempt.plan.num_devices,
        "parts": {name: {**asdict(part), "phase": str(part.phase)} for name, part in attempt.parts.items()},
    }  # fmt: skip
