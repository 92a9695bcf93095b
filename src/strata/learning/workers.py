"""Several workers on Ray, on this machine or a cluster: each plays and computes gradients, the learner averages.

Synchronous, as in DD-PPO (Wijmans et al. 2020): every minibatch waits for all workers, so N workers take the
same steps as one with N times the environments would. Worth it where playing or gradients take much longer
than sending the weights (about 100 kB).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from strata.errors import need
from strata.learning.network import Scorer
from strata.learning.ppo import Losses, Played, Scale, Worker, mean_losses

MakeWorker = Callable[[Scorer, int], Worker]
Weights = list[np.ndarray[Any, Any]]


class Remote:
    """A worker in a process of its own, with a network of its own that is overwritten before each use."""

    def __init__(self, make: MakeWorker, width: int, device: str, number: int) -> None:
        torch.set_num_threads(1)
        torch.set_flush_denormal(True)
        self._network = Scorer(width=width).to(device)
        self._worker = make(self._network, number)

    def begin(self, number: int) -> None:
        """See Worker."""
        self._worker.begin(number)

    def play(self, weights: Weights, number: int, scale: Scale) -> Played:
        """See Worker."""
        self._take(weights)
        return self._worker.play(number, scale)

    def gradients(
        self, weights: Weights, minibatch: int, scale: Scale, *, only_critic: bool
    ) -> tuple[Losses, list[Any]]:
        """Return losses and, for each parameter, its gradient or None."""
        self._take(weights)
        losses = self._worker.gradients(minibatch, scale, only_critic=only_critic)
        grads = [parameter.grad for parameter in self._network.parameters()]
        return losses, [None if grad is None else grad.cpu().numpy() for grad in grads]

    def _take(self, weights: Weights) -> None:
        with torch.no_grad():
            for parameter, values in zip(self._network.parameters(), weights, strict=True):
                parameter.copy_(torch.tensor(values))


class RayWorkers:
    """All workers as one. Holds the network that the learner steps."""

    def __init__(self, ray: Any, network: Scorer, actors: list[Any]) -> None:
        self.network = network
        self._ray = ray
        self._actors = actors

    def begin(self, number: int) -> None:
        """See Worker."""
        self._call("begin", number)

    def play(self, number: int, scale: Scale) -> Played:
        """Let all play; rewards and the spread of returns are means over the workers."""
        parts: list[Played] = self._call("play", self._weights(), number, scale)
        return Played(
            np.mean([part.reward for part in parts], axis=0),
            np.sqrt(np.mean([part.return_std**2 for part in parts], axis=0)),
            sum(part.steps for part in parts),
        )

    def gradients(self, minibatch: int, scale: Scale, *, only_critic: bool) -> Losses:
        """Leave the mean of all gradients in the network."""
        results = self._call("gradients", self._weights(), minibatch, scale, only_critic=only_critic)
        grads = zip(*(parts for _, parts in results), strict=True)
        for parameter, parts in zip(self.network.parameters(), grads, strict=True):
            known = [grad for grad in parts if grad is not None]
            parameter.grad = torch.tensor(np.mean(known, axis=0)).to(parameter.device) if known else None
        return mean_losses([losses for losses, _ in results])

    def _weights(self) -> Any:
        return self._ray.put([parameter.detach().cpu().numpy() for parameter in self.network.parameters()])

    def _call(self, method: str, *arguments: Any, **named: Any) -> list[Any]:
        calls = [getattr(actor, method).remote(*arguments, **named) for actor in self._actors]
        results: list[Any] = self._ray.get(calls)
        return results


@contextmanager
def ray_workers(
    network: Scorer, make: MakeWorker, *, workers: int, width: int, device: str = "cpu"
) -> Iterator[RayWorkers]:
    """Start workers on the cluster of RAY_ADDRESS, else on this machine, and stop what was started.

    Raises MissingPart where ray is not installed.
    """
    ray = need("ray", extra="train")
    address = os.environ.get("RAY_ADDRESS")
    # Of a local Ray as many processors are asked as workers, or those beyond the machine's would wait for ever.
    here = {} if address else {"num_cpus": workers, "include_dashboard": False}
    ray.init(address=address or "local", log_to_driver=False, logging_level="error", **here)
    try:
        gpus = min(1.0, ray.cluster_resources().get("GPU", 0.0) / workers) if device != "cpu" else 0.0
        remote = ray.remote(num_cpus=1, num_gpus=gpus)(Remote)
        yield RayWorkers(ray, network, [remote.remote(make, width, device, number) for number in range(workers)])
    finally:
        ray.shutdown()
