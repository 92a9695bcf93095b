"""Step time from measured layer profiles: the exact pipeline recurrence, blocking exchanges, two fitted constants.

Layer times measured alone leave out what runs between them. Without any constant, this module adds

* the exchange between two stages as DeepSpeed's 1F1B runs it: a send blocks its sender, and a stage sends its
  next activation only once the gradient it waits for has come. So with c the time of one message, a backward
  is followed by 2c on the link before (its gradient goes out, the next activation comes in) and a forward by
  c on the link after; nothing of it is hidden behind compute.
* one network interface a node: the rings of a node's tensor-parallel ranks share it (`shared_ring_s`).
* the optimizer's update of every layer a stage holds.

and with the two constants of `SoftwareConstants` what the end of a step and a byte handed over cost beside that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.fleet.fleet import BandwidthCurve
from strata.simulate.pipeline import StageTimes, classic_warmup, recurrence_s

Array = Floats


@dataclass(frozen=True, slots=True)
class SoftwareConstants:
    """Constants of the training software, the same for every model, accelerator and network.

    exchange_overhead_s: per step of a run whose stages or copies end it together: the loss sent down the pipeline
        and summed between copies, the norm of all gradients, tied weights, one after another in small messages
        that each wait for the slowest; the accelerators idle meanwhile. A run of one stage and one copy has none.
    handover_s_per_byte: per byte of an activation (or its gradient) exchanged between stages, beside the
        network: cutting it into one piece a tensor-parallel rank, copies, gathering it in the next node.
    """

    exchange_overhead_s: float = field(metadata={"unit": "s"})
    handover_s_per_byte: float = field(metadata={"unit": "s/B"})


CALIBRATION: Final = SoftwareConstants(exchange_overhead_s=0.065, handover_s_per_byte=23e-12)
"""Trust: calibrated. Fitted to `FITTED_ON` by `python benchmarks/fit_accuracy.py CASES.json`: the least soft-L1
sum of log(predicted / measured), doubtful rows included. No figure of another simulator is an input."""

FITTED_ON: Final = (
    "the 19 measured runs in training_cases.json (artifact of Sailor, SOSP 2025, MIT licence): 8 of OPT-350 and "
    "6 of GPT-Neo-2.7 on 1-64 nodes of 4 GH200, 5 of OPT-350 on mixed RTX and Titan nodes; "
    "Megatron-DeepSpeed, fp32, tensor parallel 2, 4 and 8"
)


@dataclass(frozen=True, slots=True)
class ProfiledStep:
    """One training step over measured profiles: C different pipelines (chains of replicas) of S stages.

    forward_s, backward_s  [C, S]    layers of one microbatch [s]
    send_s, send_back_s    [C, S-1]  network time of one activation to, one gradient from, the next stage [s]
    message_bytes          [S-1]     size of such a message, all tensor-parallel ranks together
    after_s                          the slowest stage's gradient all-reduce and optimizer update [s]
    num_copies                       of a stage, that train on different samples
    """

    forward_s: Array
    backward_s: Array
    send_s: Array
    send_back_s: Array
    message_bytes: Array
    microbatches: int
    after_s: float
    num_copies: int = 1

    @property
    def has_exchange(self) -> bool:
        """Whether a step ends in messages: between stages, or between copies."""
        return self.num_copies > 1 or self.forward_s.shape[1] > 1


def predicted_s(step: ProfiledStep, calibration: SoftwareConstants = CALIBRATION) -> float:
    """Return the predicted time of one step [s]."""
    handover = np.array([calibration.handover_s_per_byte])
    return (
        float(pipelines_s(step, handover)[0]) + step.after_s + step.has_exchange * calibration.exchange_overhead_s
    )


def pipelines_s(step: ProfiledStep, handover_s_per_byte: Array) -> Array:
    """Return the slowest pipeline's time [K] for each of K values of the handover constant [s].

    The wait for a next activation is charged after the last backward too, where there is none: too much
    by one message a link and step.
    """
    K = len(handover_s_per_byte)
    C, S = step.forward_s.shape
    handover_s = handover_s_per_byte[:, None, None] * step.message_bytes
    forward_s = np.broadcast_to(step.forward_s, (K, C, S)).copy()
    backward_s = np.broadcast_to(step.backward_s, (K, C, S)).copy()
    send_s = step.send_s + handover_s
    forward_s[:, :, :-1] += send_s
    backward_s[:, :, 1:] += send_s + step.send_back_s + handover_s
    hidden_s = np.zeros((K * C, S - 1))
    times = StageTimes(forward_s.reshape(K * C, S), backward_s.reshape(K * C, S), hidden_s, hidden_s)
    each = np.asarray(recurrence_s(times, step.microbatches, np.array(classic_warmup(S))))
    return np.asarray(each.reshape(K, C).max(axis=1))


def shared_send_s(curve: BandwidthCurve, num_bytes: float, ranks: int) -> float:
    """Return the time `ranks` ranks of one node take to send `num_bytes` together, in equal pieces [s].

    `curve` is the node's aggregate bandwidth with that many ranks sending, by the size of one piece.
    """
    return 0.0 if num_bytes <= 0 else num_bytes / curve.bandwidth_bytes_per_s(num_bytes / ranks)


def shared_ring_s(curve: BandwidthCurve, num_bytes: float, ranks: int, replicas: int) -> float:
    """Return the ring all-reduce of one stage over `replicas` nodes [s].

    num_bytes: gradients of all `ranks` tensor-parallel ranks of a node, whose rings run at once through its
    one interface. 2 (D-1) steps of a D-th of the bytes; `curve` as in `shared_send_s`, of the slowest link.
    """
    return 2 * (replicas - 1) * shared_send_s(curve, num_bytes / replicas, ranks)
