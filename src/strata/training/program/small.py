"""A real small training run with NumPy alone: `python -m strata.training.program.small`, one process a rank.

It does what `client` asks of a training program: a language model of residual MLPs, cut by layers over pipelines
and copies as the plan says, learns by Adam in float64. Data depend on the step alone and sums are added in a fixed
order, so that a run that was moved has the losses of one that was not, to rounding.

Letters: B samples, T tokens of one, D hidden, V vocabulary.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from strata.training.program.client import STOPPED, Attempt, num_samples, sample_range
from strata.training.program.pacing import PacedLinks
from strata.training.program.peers import Peers

Array: TypeAlias = NDArray[np.float64]
Layer: TypeAlias = dict[str, Array]

_VOCABULARY: Final = 64
_LEARNING_RATE: Final = 1e-3
_WORTH_TIMING_BYTES: Final = 2**18
"""A shorter message says more of latency and of our own threads than of the link."""


class Part:
    """The layers of this rank, their Adam moments, and one step of them."""

    def __init__(self, launch: dict[str, Any], peers: Peers, *, hidden: int, tokens: int) -> None:
        self.launch, self.plan, self.peers, self.tokens = launch, launch["plan"], peers, tokens
        self.me = launch["ranks"][peers.rank]
        pipeline = self.plan["pipelines"][self.me["pipeline"]]
        if len(self.me["chunks"]) > 1 or any(len(group) > 1 for group in launch["tensor_groups"]):
            sys.exit("this trainer cuts a model into layers only: no tensor parallelism, no interleaved stages")
        self.chain = next(chain for chain in launch["pipeline_groups"] if peers.rank in chain)
        first, last = self.me["chunks"][0]
        self.layers = {n: _layer(n, launch["num_layers"], hidden, tokens) for n in range(first, last + 1)}
        self.moments = {
            (n, key): (np.zeros_like(w), np.zeros_like(w))
            for n, held in self.layers.items()
            for key, w in held.items()
        }
        self.gradients: dict[int, Layer] = {}
        self.samples = sample_range(launch, peers.rank)
        self.batch = sum(num_samples(self.plan, p) for p in self.plan["pipelines"])
        self.stage, self.last_stage = self.me["stage"], len(pipeline["stages"]) - 1
        self.turns = [(turn[0], int(turn[1:].split(".")[0])) for turn in self._turns().split()]

    def step(self, number: int) -> float:
        """Work through the microbatches in the plan's order, sum gradients, step Adam; return this rank's loss."""
        starts = np.random.default_rng(number).integers(_VOCABULARY, size=self.batch)
        size, loss = self.plan["microbatch_size"], 0.0
        kept: dict[int, list[tuple[int, Any]]] = {}
        self.gradients = {n: {key: np.zeros_like(w) for key, w in held.items()} for n, held in self.layers.items()}
        for kind, microbatch in self.turns:
            if kind == "W":  # weight gradients come with those of inputs here
                continue
            first = self.samples.start + microbatch * size
            own = starts[first : min(first + size, self.samples.stop)]
            text = (own[:, None] + np.arange(self.tokens + 1)) % _VOCABULARY  # (B, T + 1)
            if kind == "F":
                x: Any = text[:, :-1] if self.stage == 0 else self._receive(-1, "F", microbatch)
                kept[microbatch] = []
                for n in self.layers:
                    y, saved = self._forward(n, x)
                    kept[microbatch].append((n, saved))
                    x = y
                if self.stage < self.last_stage:
                    self._send(1, "F", microbatch, x)
                else:
                    part, gradient = _cross_entropy(x, text[:, 1:], self.batch)
                    loss += part
                    kept[microbatch].append((-1, gradient))
            else:
                saved_layers = kept.pop(microbatch)
                dy = saved_layers.pop()[1] if self.stage == self.last_stage else self._receive(1, "B", microbatch)
                for n, saved in reversed(saved_layers):
                    dy = self._backward(n, saved, dy)
                if self.stage:
                    self._send(-1, "B", microbatch, dy)
        self._sum_gradients()
        self._update(number)
        return loss

    def _turns(self) -> str:
        turns: str = self.launch["turns"][self.me["pipeline"]][self.stage]
        return turns

    def _forward(self, n: int, x: Any) -> tuple[Array, Any]:
        w = self.layers[n]
        if "token" in w:
            return w["token"][x] + w["position"][: x.shape[1]], x
        if "out" in w:
            return x @ w["out"], x
        hidden = x @ w["up"]
        return x + np.maximum(hidden, 0) @ w["down"], (x, hidden)

    def _backward(self, n: int, saved: Any, dy: Array) -> Array:
        w, g = self.layers[n], self.gradients[n]
        if "token" in w:
            np.add.at(g["token"], saved, dy)
            g["position"][: dy.shape[1]] += dy.sum(0)
            return dy
        if "out" in w:
            g["out"] += np.einsum("btd,btv->dv", saved, dy, optimize=True)
            return dy @ w["out"].T
        x, hidden = saved
        active: Array = np.maximum(hidden, 0)
        g["down"] += np.einsum("bth,btd->hd", active, dy, optimize=True)
        inside = (dy @ w["down"].T) * (hidden > 0)
        g["up"] += np.einsum("btd,bth->dh", x, inside, optimize=True)
        dx: Array = dy + inside @ w["up"].T
        return dx

    def _sum_gradients(self) -> None:
        for index, group in enumerate(self.launch["data_groups"]):
            if len(group["ranks"]) > 1 and self.peers.rank in group["ranks"]:
                held = range(group["first_layer"], group["last_layer"] + 1)
                parts = [self.gradients[n][key] for n in held for key in self.gradients[n]]
                total = self.peers.sum(group["ranks"], f"data {index}", np.concatenate([p.ravel() for p in parts]))
                pieces = np.split(total, np.cumsum([p.size for p in parts])[:-1])
                for part, summed in zip(parts, pieces, strict=True):
                    part[...] = summed.reshape(part.shape)

    def _update(self, number: int) -> None:
        """Step Adam (arXiv 1412.6980, algorithm 1)."""
        for (n, key), (mean, square) in self.moments.items():
            g = self.gradients[n][key]
            mean += 0.1 * (g - mean)
            square += 0.001 * (g**2 - square)
            root = np.sqrt(square / (1 - 0.999 ** (number + 1))) + 1e-8
            self.layers[n][key] -= _LEARNING_RATE / (1 - 0.9 ** (number + 1)) * mean / root

    def _send(self, ahead: int, kind: str, microbatch: int, array: Array) -> None:
        self.peers.send(self.chain[self.stage + ahead], f"{kind}{microbatch}", array)

    def _receive(self, ahead: int, kind: str, microbatch: int) -> Array:
        return self.peers.receive(self.chain[self.stage + ahead], f"{kind}{microbatch}")


def _layer(n: int, count: int, hidden: int, tokens: int) -> Layer:
    rng = np.random.default_rng([1, n])

    def new(*shape: int) -> Array:
        weights: Array = rng.standard_normal(shape) * shape[0] ** -0.5
        return weights

    if n == 0:
        return {"token": new(_VOCABULARY, hidden), "position": new(tokens, hidden)}
    if n == count - 1:
        return {"out": new(hidden, _VOCABULARY)}
    return {"up": new(hidden, 4 * hidden), "down": new(4 * hidden, hidden)}


def _cross_entropy(logits: Array, wanted: NDArray[np.int64], batch: int) -> tuple[float, Array]:
    """Return the loss of these samples, a share of the global batch's mean, and its gradient [B, T, V]."""
    shifted = logits - logits.max(-1, keepdims=True)
    log_sum = np.log(np.exp(shifted).sum(-1, keepdims=True))
    picked = np.take_along_axis(shifted - log_sum, wanted[..., None], -1)
    gradient = np.exp(shifted - log_sum)
    np.put_along_axis(gradient, wanted[..., None], np.take_along_axis(gradient, wanted[..., None], -1) - 1, -1)
    scale = 1 / (batch * wanted.shape[1])
    return float(-picked.sum() * scale), gradient * scale


def _save(attempt: Attempt, part: Part, step: int) -> None:
    """Write a file a layer: whoever holds the layer under the next plan reads it."""
    folder = attempt.begin(step)
    if part.me["pipeline"] == 0 and part.me["copy"] == 0:  # every layer once; all copies are alike
        for n, held in part.layers.items():
            arrays = dict(held)
            for key in held:
                arrays[f"{key}.mean"], arrays[f"{key}.square"] = part.moments[n, key]
            np.savez(folder / f"layer-{n}.npz", **arrays)  # type: ignore[arg-type]
    _everyone(part, 0.0)
    if part.peers.rank == 0:
        attempt.finish(step)


def _load(attempt: Attempt, part: Part) -> int:
    """Take up the newest complete checkpoint, whatever plan wrote it; return how many steps are in it."""
    newest = attempt.newest()
    # Rank 0 says which: a folder that is being cleaned up may look different to the others.
    step = int(_everyone(part, float(newest.step if newest and part.peers.rank == 0 else 0)))
    if step:
        assert attempt.checkpoints is not None
        for n, held in part.layers.items():
            with np.load(attempt.checkpoints / f"step-{step:09d}" / f"layer-{n}.npz") as file:
                for key in held:
                    held[key][...] = file[key]
                    for moment, name in zip(part.moments[n, key], ("mean", "square"), strict=True):
                        moment[...] = file[f"{key}.{name}"]
    return step


def _everyone(part: Part, value: float) -> float:
    """Return the sum over all ranks: every one is at least here."""
    everyone = list(range(part.peers.world_size))
    return float(part.peers.sum(everyone, "all", np.array([value]))[0])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small model with NumPy, as the plan says.")
    parser.add_argument("--hidden-size", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--links", type=Path, help="hold messages to the rates in this file (`pacing`)")
    return parser.parse_args()


def main() -> int:
    """Train until the steps are done (0) or until stopped (143)."""
    arguments, attempt = _arguments(), Attempt.of(os.environ)
    launch = attempt.launch()
    if launch is None or attempt.steps is None:
        sys.exit("needs STRATA_RANKS and STRATA_STEPS: `strata submit` sets them")
    domains = [rank["domain"] for rank in launch["ranks"]]
    longest: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))

    def arrived(source: int, num_bytes: int, seconds: float) -> None:
        if domains[source] != domains[attempt.rank] and num_bytes >= _WORTH_TIMING_BYTES:
            longest[domains[source]] = max(longest[domains[source]], (num_bytes, seconds))

    peers = Peers(
        rank=attempt.rank, world_size=attempt.world_size,
        master=(os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "29500"))),
        key=f"{attempt.job}.{attempt.number}", on_bytes=arrived,
        pace=PacedLinks(arguments.links, domains=domains, rank=attempt.rank) if arguments.links else None,
    )  # fmt: skip
    part = Part(launch, peers, hidden=arguments.hidden_size, tokens=arguments.tokens)
    step, end = _load(attempt, part), False
    while step < attempt.steps and not end:
        start = time.perf_counter()
        loss = part.step(step)
        step += 1
        # One more number in the sum of losses: all ranks stop after the same step.
        everyone = list(range(peers.world_size))
        loss, stopping = peers.sum(everyone, "loss", np.array([loss, attempt.is_stopping]))
        attempt.report(step, loss=loss, step_time_s=time.perf_counter() - start)
        for source in list(longest):
            num_bytes, seconds = longest.pop(source)
            attempt.report_transfer(source, domains[attempt.rank], num_bytes=num_bytes, seconds=seconds)
        end = bool(stopping)
        if end or attempt.is_due(step) or step == attempt.steps:
            _save(attempt, part, step)
    peers.close()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Python dies of one that comes while it shuts down
    return 0 if step == attempt.steps else STOPPED


if __name__ == "__main__":
    sys.exit(main())
