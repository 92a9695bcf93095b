"""What a training program needs to be watched, stopped and moved: `docs/training-program.md` says what it must do.

One file of the standard library alone: copy it beside your program, as `strata export --to torchrun` does, or
import it. Everything comes from environment variables that strata's drivers set; a program that is started by hand
has none of them, reports nowhere, and runs as always.

    attempt = Attempt.of(os.environ)
    newest = attempt.newest()                    # None: begin at step 0
    while step < attempt.steps and not attempt.is_stopping:
        ...
        attempt.report(step, loss=loss)
    with attempt.saving(step) as folder:         # every rank writes its part, rank 0 last
        ...
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STOPPED = 143
"""Exit code of a program that saved and stopped because it was asked to; 0 is for training that is complete."""

_MARKER = "complete.json"
_TAKEN = ".attempt-"
_KEPT = 2  # the newest may turn out unreadable on a dying disk


class SupersededError(RuntimeError):
    """A later attempt at the job has begun: this one, which nobody could reach, must neither train nor save."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint: `step` optimizer steps are in it."""

    step: int
    path: Path


@dataclass
class Attempt:
    """This process's part in one attempt at a job.

    ranks: the rank map of the plan (`ranks.json`). progress: where rank 0 reports. checkpoints: the folder of all
    checkpoints of the job, the same for every domain. steps: when training is complete. save_every: steps between
    checkpoints; 0 for none but on SIGTERM. grace_s: from SIGTERM until SIGKILL.
    """

    job: str = ""
    number: int = 0
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    ranks: Path | None = None
    progress: Path | None = None
    checkpoints: Path | None = None
    steps: int | None = None
    save_every: int = 0
    grace_s: float = 30.0
    is_stopping: bool = field(default=False, init=False)

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Attempt:
        """Read the environment, and listen to SIGTERM from now on: it only sets `is_stopping`."""

        def path(name: str) -> Path | None:
            return Path(environment[name]) if environment.get(name) else None

        def whole(name: str, default: int) -> int:
            return int(environment.get(name) or default)

        attempt = cls(
            job=environment.get("STRATA_JOB", ""),
            number=whole("STRATA_ATTEMPT", 0),
            rank=whole("RANK", 0),
            world_size=whole("WORLD_SIZE", 1),
            local_rank=whole("LOCAL_RANK", 0),
            ranks=path("STRATA_RANKS"),
            progress=path("STRATA_PROGRESS"),
            checkpoints=path("STRATA_CHECKPOINTS"),
            steps=whole("STRATA_STEPS", 0) or None,
            save_every=whole("STRATA_SAVE_EVERY", 0),
            grace_s=float(environment.get("STRATA_GRACE_S") or 30.0),
        )
        signal.signal(signal.SIGTERM, attempt._stop)
        return attempt

    def launch(self) -> dict[str, Any] | None:
        """Return the rank map and the plan, as `ranks.json` holds them; None where there is no plan."""
        if self.ranks is None:
            return None
        data: dict[str, Any] = json.loads(self.ranks.read_text(encoding="utf-8"))
        return data

    def report(self, step: int, *, loss: float | None = None, step_time_s: float | None = None) -> None:
        """Say that `step` optimizer steps are done; all ranks may call it, rank 0 writes."""
        self._write({"step": step, "loss": loss, "step_time_s": step_time_s})

    def report_transfer(self, source: str, dest: str, *, num_bytes: int, seconds: float) -> None:
        """Say how long bytes took from one domain to another: it saves a probe of that link. Any rank may."""
        self._append({"source": source, "dest": dest, "num_bytes": num_bytes, "seconds": seconds})

    def is_due(self, step: int) -> bool:
        """Return whether a checkpoint is due after this many steps: the same on every rank."""
        return self.save_every > 0 and step % self.save_every == 0

    def newest(self) -> Checkpoint | None:
        """Return the newest complete checkpoint; one that was not finished, or has lost a file, is none.

        From here on no earlier attempt makes a checkpoint count. Raises SupersededError where a later one began.
        """
        self._take_over()
        if self.checkpoints is None or not self.checkpoints.is_dir():
            return None
        checkpoints = (_complete(path) for path in self.checkpoints.iterdir())
        return max((checkpoint for checkpoint in checkpoints if checkpoint), key=lambda c: c.step, default=None)

    def begin(self, step: int) -> Path:
        """Return the folder that all ranks write a checkpoint into; it counts for nothing before `finish`.

        Raises SupersededError, as `finish` does, where a later attempt has begun.
        """
        assert self.checkpoints is not None, "STRATA_CHECKPOINTS is not set"
        self._check_newest()
        folder = self.checkpoints / f".step-{step:09d}.{self.number}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def finish(self, step: int) -> None:
        """Make a checkpoint count, once every rank has written its part: rank 0 calls it, after a barrier.

        Everything is on the disk before the name is: a power cut leaves the checkpoint before it, whole.
        """
        folder, final = self.begin(step), self.path(step)
        files = {str(p.relative_to(folder)): p.stat().st_size for p in sorted(folder.rglob("*")) if p.is_file()}
        for name in files:
            _sync(folder / name)
        marker = folder / _MARKER
        marker.write_text(json.dumps({"step": step, "attempt": self.number, "files": files}), encoding="utf-8")
        _sync(marker)
        _sync(folder)
        self._check_newest()  # as late as can be
        if _complete(final):  # the same step was saved by an attempt before; both are the same state
            shutil.rmtree(folder)
        else:
            shutil.rmtree(final, ignore_errors=True)
            folder.rename(final)
        _sync(final.parent)
        self._write({"step": step, "checkpoint": final.name})
        self._forget(step)

    @contextmanager
    def saving(self, step: int) -> Iterator[Path]:
        """Save with a single process: yield the folder to write into, then make it count."""
        yield self.begin(step)
        self.finish(step)

    def path(self, step: int) -> Path:
        """Return the folder of a complete checkpoint."""
        assert self.checkpoints is not None
        return self.checkpoints / f"step-{step:09d}"

    def _take_over(self) -> None:
        """Leave a file that says which attempt has begun; who only looks has no number."""
        if self.checkpoints is None or self.number == 0:
            return
        self._check_newest()
        with suppress(OSError):  # a full disk: saving will say so
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            (self.checkpoints / f"{_TAKEN}{self.number}").touch()

    def _check_newest(self) -> None:
        assert self.checkpoints is not None
        numbers = (path.name.removeprefix(_TAKEN) for path in self.checkpoints.glob(f"{_TAKEN}*"))
        newest = max((int(number) for number in numbers if number.isdecimal()), default=0)
        if self.number and newest > self.number:
            raise SupersededError(
                f"attempt {newest} has begun: attempt {self.number} ends here, and saves nothing"
            )

    def _forget(self, step: int) -> None:
        """Remove what is older than the last two, and what earlier attempts left half-written."""
        assert self.checkpoints is not None
        whole = sorted(p for p in self.checkpoints.glob("step-*") if p.name <= self.path(step).name)
        half = [p for p in self.checkpoints.glob(".step-*") if int(p.name.rpartition(".")[2]) < self.number]
        for path in (*whole[:-_KEPT], *half):
            shutil.rmtree(path, ignore_errors=True)

    def _stop(self, *_: object) -> None:
        self.is_stopping = True

    def _write(self, line: dict[str, Any]) -> None:
        if self.rank == 0:
            self._append(line)

    def _append(self, line: dict[str, Any]) -> None:
        if self.progress is not None:
            # One write, appended: lines of several ranks never mix.
            text = json.dumps({"at_s": time.time(), "attempt": self.number, **line}) + "\n"
            with open(self.progress, "ab", buffering=0) as file:
                file.write(text.encode())


def sample_range(launch: Mapping[str, Any], rank: int) -> range:
    """Return which samples of a step's global batch are a rank's: each is one pipeline copy's, in any plan."""
    me, plan = launch["ranks"][rank], launch["plan"]
    before = sum(num_samples(plan, pipeline) for pipeline in plan["pipelines"][: me["pipeline"]])
    pipeline = plan["pipelines"][me["pipeline"]]
    each, more = divmod(num_samples(plan, pipeline), pipeline["replicas"])
    first = before + each * me["copy"] + min(me["copy"], more)
    return range(first, first + each + (me["copy"] < more))


def num_samples(plan: Mapping[str, Any], pipeline: Mapping[str, Any]) -> int:
    """Return the samples of a step that all copies of a pipeline work through together."""
    full: int = pipeline["replicas"] * pipeline["microbatches"] * plan["microbatch_size"]
    return int(pipeline.get("samples", full))


def _complete(path: Path) -> Checkpoint | None:
    match = re.fullmatch(r"step-(\d{9})", path.name)
    if match is None:
        return None
    with suppress(OSError, ValueError, TypeError, AttributeError):
        files = json.loads((path / _MARKER).read_text(encoding="utf-8"))["files"]
        if all((path / name).stat().st_size == size for name, size in files.items()):
            return Checkpoint(int(match[1]), path)
    return None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
