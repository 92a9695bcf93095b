"""One job's decisions through all levels, from what is stored: plans, scheduler, claims, pods and slices, host."""

from __future__ import annotations

import os
from typing import Any, Final

from strata.errors import StrataError, UsageError
from strata.host.rollout.rollout import Rollout
from strata.web.search import OF_HOSTS
from strata.web.sources import Sources

_MOST_PLANS: Final = 10


def followed(sources: Sources, name: str) -> dict[str, Any]:
    """Return what each level has decided about a job; a level's `fault` says why nothing of it is known.

    Raises UsageError where no level knows the name.
    """
    entries = sources.entries()
    plans = [entry for entry in entries if entry.decision.get("name") == name and entry.kind not in OF_HOSTS]
    reports = [entry for entry in entries if entry.decision.get("job") == name and entry.kind in OF_HOSTS and name]
    job, fault = _job(sources, name)
    attempts = [attempt["id"] for attempt in job["attempts"]] if job else []
    cluster = sources.cluster_seen()
    claims = [
        claim
        for claim in (cluster.claims if cluster else ())
        if name in (claim["name"], claim["object"]) or (claim["attempt"] and claim["attempt"] in attempts)
    ]
    uses, slice_faults = sources.slices(os.environ)
    slices = [use for use in uses if use.name == name]
    host, host_fault = _host(sources, name)
    if not (plans or job or claims or slices or host or reports):
        where = [fault, *(cluster.faults if cluster else ())]
        unread = "; ".join(filter(None, where))
        raise UsageError(f"there is no decision about {name!r}{unread and f' in what could be read: {unread}'}")
    return {
        "name": name,
        "plans": plans[:_MOST_PLANS],
        "job": job,
        "job_fault": fault,
        "cluster": cluster,
        "claims": claims,
        "slices": slices,
        "slice_faults": slice_faults,
        "host": host,
        "reports": reports[:_MOST_PLANS],
        "host_fault": host_fault,
    }


def _job(sources: Sources, name: str) -> tuple[dict[str, Any] | None, str]:
    try:
        return sources.scheduler.job(name), ""
    except StrataError as error:
        return None, "; ".join(error.lines())


def _host(sources: Sources, name: str) -> tuple[list[dict[str, Any]], str]:
    """Return a job's attempts in roll-outs: what each was told to run under, and what came of it."""
    try:
        rollouts = sources.tried()
    except StrataError as error:
        return [], "; ".join(error.lines())
    return [attempt for rollout in rollouts for attempt in _attempts(rollout, name)], ""


def _attempts(rollout: Rollout, name: str) -> list[dict[str, Any]]:
    assigned = {number: str(policy) for (job, number), policy in rollout.assigned.items() if job == name}
    done = {attempt.number: attempt for attempt in rollout.attempts if attempt.job == name}
    return [
        {
            "rollout": rollout.plan.name,
            "unit": str(rollout.plan.unit),
            "number": number,
            "assigned": assigned.get(number, ""),
            "ran": str(done[number].policy) if number in done else "",
            "value": done[number].value if number in done else None,
            "is_over": number in done,
        }
        for number in sorted({*assigned, *done}, reverse=True)
    ]
