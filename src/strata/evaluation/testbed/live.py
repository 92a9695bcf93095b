"""A scheduler, three domains on this machine and one small training job that is moved when its link goes bad.

The domains are network namespaces with shaped links where this user may make them. Else they are plain processes,
and the trainer itself holds its messages to the rate of a link (`training.program.pacing`): the network under it
is not shaped, all else is as real. Nothing is left behind: what was started is ended, also on an interrupt.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from strata.control.assembly import assembled
from strata.control.daemon import Daemon
from strata.control.drivers.part import PartFolder
from strata.control.jobfile import read_job
from strata.control.policies import PolicyName
from strata.control.views import job_view
from strata.errors import MissingPart, StrataError
from strata.evaluation.testbed.namespaces import LinkShape, Namespaces, address, check_parts
from strata.files import write_json

NAMES: Final = ("west", "east", "north")
RATE: Final = 4e6
"""Of every link [bytes/s]: 262 kB of activations cross it in 66 ms."""

BAD: Final = 0.1
STEPS: Final = 30
BAD_AFTER: Final = 6
"""Steps that are done before the link goes bad."""

INTERVAL_S: Final = 3.0
PROBE_SHARE: Final = 0.05
"""Of the links, for probes: 1 % of so slow a link for 3 s is 30 ms, which a busy machine cannot time."""

_POLL_S: Final = 0.1
_LIMIT_S: Final = 600.0
_HIDDEN, _TOKENS, _BATCH, _LAYERS = 256, 64, 16, 2


@dataclass(frozen=True, slots=True)
class LiveEvent:
    """Something that happened, for people; `at_s` since the job was submitted."""

    at_s: float
    text: str


@dataclass(frozen=True, slots=True)
class LiveReport:
    """What came of it. steps: as rank 0 reported them, in order; losses of the same. moved_s: from the link's fall
    until the first step elsewhere."""

    kind: str
    events: tuple[LiveEvent, ...]
    steps: tuple[int, ...]
    losses: tuple[float, ...]
    moved_s: float | None

    @property
    def is_whole(self) -> bool:
        """Whether every step was done, and none twice."""
        return self.steps == tuple(range(1, STEPS + 1))


class Network:
    """Three domains: namespaces where rights allow, plain processes else."""

    def __init__(self, folder: Path, stack: ExitStack, *, may_shape: bool) -> None:
        self._file = folder / "links.json"
        self._pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
        self.namespaces: Namespaces | None = None
        if may_shape:
            try:
                check_parts()
                self.namespaces = stack.enter_context(Namespaces(3, has_latency=False))
            except MissingPart:
                self.namespaces = None
        self.shape(RATE, self._pairs)

    @property
    def kind(self) -> str:
        """What the domains are, for people."""
        links = f"links of {RATE * 8 / 1e6:.0f} Mbit/s"
        if self.namespaces:
            return f"network namespaces on this machine, with {links} (tc)"
        return (
            f"plain processes on this machine (namespaces need root), with {links} that the trainer itself keeps "
            "to: the network under it is not shaped"
        )

    def shape(self, rate: float, pairs: list[tuple[int, int]]) -> None:
        """Give directed links a rate [bytes/s]."""
        if self.namespaces:
            self.namespaces.shape_links(LinkShape(rate, 0.0), pairs)
            return
        rates = json.loads(self._file.read_text(encoding="utf-8")) if self._file.exists() else {}
        write_json(self._file, rates | {f"{NAMES[a]}>{NAMES[b]}": rate for a, b in pairs})

    def driver(self, number: int) -> dict[str, str]:
        """Return the driver of a domain, as in a fleet file."""
        if not self.namespaces:
            return {"kind": "local"}
        own = {"namespace": self.namespaces.names[number], "address": address(number)}
        return {"kind": "local", **own, "interface": self.namespaces.interface(number)}

    def command(self) -> list[str]:
        """Return what each rank runs."""
        paced = [] if self.namespaces else ["--links", str(self._file)]
        size = ["--hidden-size", str(_HIDDEN), "--tokens", str(_TOKENS)]
        return ["python", "-m", "strata.training.program.small", *size, *paced]


def run_live(folder: Path, *, may_shape: bool, tell: Callable[[LiveEvent], None]) -> LiveReport:
    """Run the job to its end in an empty folder; `tell` gets what happens as it happens.

    Raises StrataError where the job does not end as it should.
    """
    with ExitStack() as stack:
        network = Network(folder, stack, may_shape=may_shape)
        fleet, job = _files(folder, network)
        daemon = stack.enter_context(_scheduler(fleet, folder / "fleet.db"))
        _, piece = read_job(job)
        name = daemon.submit(piece).name
        start_s, events = time.monotonic(), list[LiveEvent]()

        def say(text: str) -> None:
            events.append(LiveEvent(time.monotonic() - start_s, text))
            tell(events[-1])

        say(f"{name} is submitted: {STEPS} optimizer steps, over two of the domains")
        moved_s = _watch(daemon, name, network, say)
        reports = _reports(folder)
        return LiveReport(
            network.kind, tuple(events), tuple(step for step, _ in reports), tuple(loss for _, loss in reports),
            moved_s,
        )  # fmt: skip


def _watch(daemon: Daemon, name: str, network: Network, say: Callable[[str], None]) -> float | None:
    """Say what becomes of the job until it is over, with its link going bad on the way."""
    deadline_s = time.monotonic() + _LIMIT_S
    fell_s: float | None = None
    moved_s: float | None = None
    shown = fell_in = 0
    while True:
        job = job_view(daemon, name)
        attempts = job["attempts"]
        if len(attempts) > shown:
            shown = len(attempts)
            if shown == 1:
                say(f"runs as {job['decisions'][0]['reasons'][0]['text']}")
            else:
                saved = attempts[-2]["checkpoint_step"]
                say(f"saved after step {saved}, to be moved: {attempts[-2]['reason']}")
                say(f"goes on from step {attempts[-1]['from_step']} on {', '.join(attempts[-1]['parts'])}")
        if fell_s is None and job["steps_done"] >= BAD_AFTER and len(job["domains"]) > 1:
            here, there = (NAMES.index(domain) for domain in job["domains"][:2])
            network.shape(RATE * BAD, [(here, there), (there, here)])
            fell_s, fell_in = time.monotonic(), shown
            say(f"the link of {NAMES[here]} and {NAMES[there]} goes bad: a tenth of its rate is left")
        has_trained = shown > fell_in and attempts[-1]["step"] > attempts[-1]["from_step"]
        if fell_s is not None and moved_s is None and has_trained:
            moved_s = time.monotonic() - fell_s
            say(f"trains again, {moved_s:.0f} s after the link went bad")
        if job["phase"] in ("done", "failed", "cancelled"):
            say(f"{job['phase']}: {job['steps_done']} steps")
            if job["phase"] != "done":
                raise StrataError(f"{name} ended as {job['phase']}", hint=f"strata demo --live; {attempts[-1:]}")
            return moved_s
        if time.monotonic() > deadline_s:
            raise StrataError(f"{name} is not done after {_LIMIT_S:.0f} s", hint="a machine that is less busy")
        time.sleep(_POLL_S)


@contextmanager
def _scheduler(fleet: Path, store: Path) -> Iterator[Daemon]:
    """Yield a daemon that runs; at the end it is stopped, and so is what it started."""
    with assembled(
        fleet,
        store,
        policy=PolicyName.HI_PPO,
        interval_s=INTERVAL_S,
        probe_every_s=INTERVAL_S,
        probe_share=PROBE_SHARE,
    ) as daemon:
        loop = threading.Thread(target=daemon.run, name="loop", daemon=True)
        loop.start()
        try:
            yield daemon
        finally:
            daemon.stop()
            loop.join()
            parts = [
                PartFolder(path) for path in store.with_suffix(".strata").glob("domains/*/*") if path.is_dir()
            ]
            for part in parts:
                part.stop(0.0)
            while any(not part.is_over() or part.is_held() for part in parts):  # its runner says so, then ends
                time.sleep(_POLL_S)


def _files(folder: Path, network: Network) -> tuple[Path, Path]:
    """Write the fleet and the job, as a user would."""
    core = {
        "vendor": "cpu", "memory": "16GB", "fp16": "40GFLOPS", "fp32": "40GFLOPS", "memory_bandwidth": "5GB/s",
    }  # fmt: skip
    here = {"accelerator": "core", "num_gpus": 1, "intra_bandwidth": "5GB/s", "network_bandwidth": "5GB/s"}
    link = {"bandwidth": f"{RATE / 1e6:g}MB/s", "latency": "1ms"}
    kind = {"apiVersion": "strata/v1alpha1", "kind": "Fleet", "name": "here", "accelerators": {"core": core}}
    fleet = {
        **kind,
        "domains": [{"name": name, **here, "driver": network.driver(n)} for n, name in enumerate(NAMES)],
        "links": [{"between": list(pair), **link} for pair in (NAMES[:2], NAMES[1:], NAMES[::2])],
    }
    model = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": _HIDDEN, "vocab_size": 64,
        "intermediate_size": 4 * _HIDDEN, "num_hidden_layers": _LAYERS, "num_attention_heads": 4,
        "num_key_value_heads": 4, "max_position_embeddings": 2 * _TOKENS, "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }  # fmt: skip
    train: dict[str, Any] = {"global_batch": _BATCH, "sequence": _TOKENS, "precision": "fp32", "optimizer": "adam"}
    job = {
        "apiVersion": "strata/v1alpha1", "kind": "TrainingJob", "name": "small", "model": "config.json",
        "train": {**train, "recompute": "none", "schedules": ["1f1b"], "zero": [0]},
        "parallel": {"tensor": 1, "pipeline": 2, "data": 1, "microbatch": 2},
        "run": {"command": network.command(), "steps": STEPS, "save_every": 10, "resume": True, "grace": "20s"},
    }  # fmt: skip
    write_json(folder / "config.json", model)
    write_json(folder / "fleet.json", fleet)
    write_json(folder / "job.json", job)
    return folder / "fleet.json", folder / "job.json"


def _reports(folder: Path) -> list[tuple[int, float]]:
    """Return steps and losses in the order they were reported."""
    files = folder.glob("fleet.strata/domains/*/*/progress.jsonl")
    lines = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return [(x["step"], x["loss"]) for x in sorted(lines, key=lambda x: float(x["at_s"])) if "loss" in x]
