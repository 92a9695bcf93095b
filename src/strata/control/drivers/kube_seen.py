"""What the objects of a part on Kubernetes say it is in: pods first, for they are the first to know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from statistics import median
from typing import Any, Final

from strata.cluster.api.kinds import Object, annotations_of, meta, name_of
from strata.control.drivers.kube_objects import ATTEMPT, REFUSED, STARTED, STOP
from strata.control.drivers.reports import step_reports
from strata.control.state import PartPhase, PartSeen
from strata.training.program.client import STOPPED

_LINES: Final = 200
"""Of a log, that steps are looked for in."""
_TIMED_STEPS: Final = 5
_ENDS: Final = ("Complete", "Failed")


def part_seen(
    record: Object, job: Object | None, pods: Sequence[Object], log: Callable[[Object, int], str]
) -> PartSeen | None:
    """Return what a part is in; None where its Job is still to be made. log: the last lines of a pod's."""
    marks = annotations_of(record)
    attempt = marks.get(ATTEMPT, "")
    is_stopping = STOP in marks
    if REFUSED in marks:
        return PartSeen(attempt, PartPhase.FAILED, message=marks[REFUSED])
    if job is None and STARTED not in marks:
        return PartSeen(attempt, PartPhase.ENDED, message="stopped before it began") if is_stopping else None
    if job is None:
        return PartSeen(attempt, PartPhase.LOST, message="its Job is gone")
    active = [pod for pod in pods if phase_of(pod) in ("Pending", "Running", "Unknown")]
    if active and not any(phase_of(pod) != "Pending" for pod in pods):
        return PartSeen(attempt, PartPhase.WAITING, message=_why_pending(active))
    if not pods and (job.get("spec") or {}).get("suspend"):
        phase = PartPhase.ENDED if is_stopping else PartPhase.WAITING
        return PartSeen(attempt, phase, message="suspended")
    seen = _progress(attempt, record, pods, log)
    if active:
        return replace(seen, phase=PartPhase.RUNNING)
    return _over(seen, job, pods, is_stopping=is_stopping)


def _progress(attempt: str, record: Object, pods: Sequence[Object], log: Callable[[Object, int], str]) -> PartSeen:
    """Return what rank 0's pod reported; every other part's pods report nothing."""
    seen = PartSeen(attempt, PartPhase.RUNNING)
    first = min(pods, key=index_of, default=None)
    steps = str((record.get("data") or {}).get("steps", ""))
    if first is None or not steps.isdecimal() or phase_of(first) == "Pending":
        return seen
    lines = list(step_reports(log(first, _LINES), most_steps=int(steps)))
    times = [report.step_time_s for report in lines[-_TIMED_STEPS:] if report.step_time_s is not None]
    return replace(
        seen,
        step=max((report.step for report in lines), default=None),
        checkpoint_step=max((report.step for report in lines if report.is_checkpoint), default=None),
        step_time_s=median(times) if times else None,
    )


def _over(seen: PartSeen, job: Object, pods: Sequence[Object], *, is_stopping: bool) -> PartSeen:
    """Return what came of a part of which no pod is active."""
    codes = [code for pod in pods if (code := _exit_code(pod)) is not None]
    conditions = (job.get("status") or {}).get("conditions") or ()
    ended: Any = next((c for c in conditions if c.get("type") in _ENDS and c.get("status") == "True"), {})
    completions = (job.get("spec") or {}).get("completions")
    if not ended and len(codes) != completions:  # its pods are still to be made
        return replace(seen, phase=PartPhase.RUNNING if pods else PartPhase.WAITING)
    usual = 0 if ended.get("type") == "Complete" else STOPPED if is_stopping else 1
    code = next((code for code in codes if code not in (0, STOPPED)), max(codes, default=usual))
    has_ended = code in (0, STOPPED) or is_stopping
    message = "" if has_ended else str(ended.get("message") or ended.get("reason") or "")
    return replace(seen, phase=PartPhase.ENDED if has_ended else PartPhase.FAILED, exit_code=code, message=message)


def phase_of(pod: Object) -> str:
    """Return a pod's phase, Pending where it has none yet."""
    return str((pod.get("status") or {}).get("phase") or "Pending")


def _exit_code(pod: Object) -> int | None:
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        ended = (status.get("state") or {}).get("terminated")
        if ended is not None:
            return int(ended.get("exitCode", 1))
    return None


def _why_pending(pods: Sequence[Object]) -> str:
    for pod in pods:
        for condition in (pod.get("status") or {}).get("conditions") or ():
            if condition.get("status") == "False" and condition.get("message"):
                return f"pod {name_of(pod)} is Pending: {condition['message']}"
    return f"{len(pods)} pods are Pending"


def label_of(obj: Object, key: str) -> str:
    """Return a label, empty where an object has none of the key."""
    return str((meta(obj).get("labels") or {}).get(key) or "")


def index_of(pod: Object) -> int:
    """Return which node of the part a pod stands for."""
    index = annotations_of(pod).get("batch.kubernetes.io/job-completion-index", "")
    return int(index) if index.isdecimal() else 0


def count_of(amount: object) -> int:
    """Return how many devices an amount is: devices are whole."""
    return int(str(amount)) if str(amount).isdecimal() else 0


def devices_held(pod: Object, resource: str) -> int:
    """Return the devices that a pod asks for."""
    containers = (pod.get("spec") or {}).get("containers") or ()
    requests = ((each.get("resources") or {}).get("requests") or {} for each in containers)
    return sum(count_of(amounts.get(resource)) for amounts in requests)


def age_s(obj: Object) -> float:
    """Return how long ago an object was made."""
    text = str(meta(obj).get("creationTimestamp") or "")
    try:
        made = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return 0.0
    return (datetime.now(UTC) - made).total_seconds()
