"""Claims from the annotations of a pod or a job: every fault at once, nothing that could reach a shell or a path.

ai.compute/vram: 16Gi            memory of each pod, of all its devices together
ai.compute/acu: "40"             compute of each pod, 1 = 1 % of an A100
ai.compute/tflops-fp16: "100"    the same, in TFLOPS
ai.compute/devices: "2"          devices of each pod, where the job counts them
ai.compute/accelerator: A100-SXM4-80GB   the card the job was written for
ai.compute/norm: compute         what cards are exchanged by: compute, memory, bandwidth or all
ai.compute/substitution: allow   other cards: never, ask or allow
ai.compute/fractional: "true"    part of one device: vram of it, and acu, tflops-fp16 or cores
ai.compute/cores: "30"           percent of one device's cores, for a fraction
ai.compute/gang-size: "4"        pods placed together or not at all
ai.compute/topology: prefer      none, prefer or require
ai.compute/within: rdma          how near the gang must be: node, rdma or rack
ai.compute/framework, ai.compute/profile, ai.compute/priority
ai.compute/data: 2TB, ai.compute/data-domain   what it reads, and the domain where that is
ai.compute/preemptible: "true"   may be moved, from its checkpoint, so that another fits
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, get_args

from strata import units
from strata.cluster.scheduling.claim import Claim, Substitution, TopologyWish
from strata.errors import BadFile, Fault, UsageError
from strata.fleet.acu import NORMS, REFERENCE, Figure, Need, acu, deliverable
from strata.fleet.catalogue import accelerator
from strata.names import closest

PREFIX: Final = "ai.compute/"
PREEMPTIBLE: Final = PREFIX + "preemptible"
"""Annotation of a job, "true" where it may be stopped and placed anew to make room for another."""
FRAMEWORKS: Final = ("pytorch", "paddle", "mindspore", "vllm")
LEVELS: Final = ("node", "rdma", "rack")
OTHERS: Final = (
    "managed", "placement", "gang", "first-place", "pods-per-job", "offer", "code-image", "engine",
    "checkpoint", "checkpoint-dir", "preemptible", "claim", "injected", "container", "counted", "waiting",
    "visible", "limits", "data", "data-domain",
)  # fmt: skip
"""Our keys outside the claim: what the controller and the webhook write or read."""

_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_MOST_PODS: Final = 10_000
_MOST_DEVICES: Final = 64
_AGREE: Final = 0.01

T = TypeVar("T")


def has_claim(annotations: Mapping[str, str]) -> bool:
    """Return whether anything is asked of us."""
    return any(key.startswith(PREFIX) and key.removeprefix(PREFIX) not in OTHERS for key in annotations)


def read_claim(annotations: Mapping[str, str], *, name: str, namespace: str = "default", where: str = "") -> Claim:
    """Return what an object's annotations ask for. Raises BadFile with every fault, each naming its key.

    where: what the object is called in faults, where it is no pod.
    """
    return _Reader(annotations, where or f"pod {namespace}/{name}").claim(name, namespace)


class _Reader:
    def __init__(self, annotations: Mapping[str, str], where: str) -> None:
        self.values: dict[str, Any] = {
            k.removeprefix(PREFIX): v for k, v in annotations.items() if k.startswith(PREFIX)
        }
        self.where = where
        self.faults: list[Fault] = []
        self.hint = ""

    def fault(self, key: str, message: str, *, try_: str = "") -> None:
        """Note a fault. try_: the key that would mend it, where that is another one."""
        self.faults.append(Fault(self.where, message, where=PREFIX + key))
        right = try_ or key
        self.hint = self.hint or f"{PREFIX}{right}: {KEYS[right]}"

    def claim(self, name: str, namespace: str) -> Claim:
        for key in sorted(self.values):
            if key not in KEYS and key not in OTHERS:
                close = closest(key, KEYS)
                meant = f"did you mean {PREFIX}{close}?" if close else f"known: {', '.join(KEYS)}"
                self.fault(_shown(key), f"unknown key ({meant})", try_=close or "vram")
        pods = self.read("gang-size", _count(_MOST_PODS), 1)
        devices = self.read("devices", _count(_MOST_DEVICES), None)
        memory = self.read("vram", _bytes, None)
        card = self.read("accelerator", _card, "")
        cores = self.read("cores", _percent, None)
        wants_fraction = self.read("fractional", _truth, None)
        within = self.read("within", _one_of(LEVELS), "")
        topology = self.read("topology", _one_of(get_args(TopologyWish)), "prefer")
        claim: dict[str, Any] = {
            "substitution": self.read("substitution", _one_of(get_args(Substitution)), "allow"),
            "norm": self.read("norm", _one_of(tuple(NORMS)), "compute"),
            "framework": self.read("framework", _one_of(FRAMEWORKS), ""),
            "profile": self.read("profile", _name, ""),
            "priority": self.read("priority", _priority, 0),
        }
        flops = self.compute()
        is_fractional = bool(wants_fraction) or (wants_fraction is None and cores is not None)
        if is_fractional:
            if devices not in (None, 1):
                self.fault("devices", f"a fraction is of one device, and {devices} are asked for")
            if memory is None:
                wanted = f"a fraction needs {PREFIX}vram, its share of the device's memory"
                self.fault("fractional", wanted, try_="vram")
            if cores is not None and flops is not None:
                self.fault("cores", f"{PREFIX}acu and {PREFIX}tflops-fp16 ask for cores as well; give one of them")
        elif cores is not None:
            self.fault("cores", f"is for fractions, and {PREFIX}fractional is false", try_="fractional")
        elif card and devices is not None:
            self.check_amount("vram", memory, f"{devices}x {card}", "memory", units.show_bytes)
            self.check_amount("acu", flops, f"{devices}x {card}", "fp16", units.show_flops)
        if topology == "require" and not within:
            self.fault("topology", f"require needs {PREFIX}within: node, rdma or rack", try_="within")
        if topology == "none" and within:
            self.fault("within", f"{within} contradicts {PREFIX}topology: none", try_="topology")
        if self.faults:
            raise BadFile(self.faults, hint=self.hint)
        amounts: dict[Figure, float] = {} if flops is None else {"fp16": flops}
        if memory is not None and not is_fractional:
            amounts["memory"] = memory
        return Claim(
            name,
            namespace,
            pods=pods,
            need=Need(amounts),
            devices=devices,
            memory_bytes=memory or 0.0 if is_fractional else 0.0,
            cores_share=cores,
            is_fractional=is_fractional,
            accelerator=card,
            topology=topology,
            group_level=within,
            **claim,
        )

    def read(self, key: str, parse: Callable[[str], T], default: Any) -> Any:
        """Return a value, or the default where it is absent or faulty (and then note the fault)."""
        if key not in self.values:
            return default
        value = self.values[key]
        if not isinstance(value, str):
            self.fault(key, "should be text; put it in quotes")
            return default
        if len(value) > 256 or not value.isprintable():
            self.fault(key, "is too long, or has characters that are not printed")
            return default
        try:
            return parse(value.strip())
        except UsageError as error:
            self.fault(key, str(error))
            return default

    def compute(self) -> float | None:
        """Return the FLOP/s asked for by `acu` or `tflops-fp16`, which must agree where both are given."""
        of_acu = self.read("acu", lambda text: _number(text) * _acu_flops(), None)
        of_flops = self.read("tflops-fp16", lambda text: _number(text) * 1e12, None)
        if of_acu is not None and of_flops is not None and abs(of_acu / of_flops - 1) > _AGREE:
            self.fault(
                "acu",
                f"{self.values['acu']} is {of_acu / 1e12:.4g} TFLOPS, and {PREFIX}tflops-fp16 says "
                f"{of_flops / 1e12:.4g}; give one of them",
            )
        return of_flops if of_flops is not None else of_acu  # type: ignore[no-any-return]

    def check_amount(
        self, key: str, amount: float | None, cards: str, figure: Figure, show: Callable[[float], str]
    ) -> None:
        """Note the fault where more is asked for than the cards that are asked for have. cards: `8x NAME`."""
        devices, _, card = cards.partition("x ")
        known = deliverable(accelerator(card), figure)
        if amount is not None and known is not None and amount > int(devices) * known[0] * (1 + _AGREE):
            have = show(int(devices) * known[0])
            self.fault(key, f"asks for {show(amount)}, and {cards} have {have}; give one of them")


KEYS: Final[Mapping[str, str]] = {
    "vram": "16Gi",
    "acu": '"40"',
    "tflops-fp16": '"100"',
    "devices": '"2"',
    "accelerator": REFERENCE,
    "norm": "compute",
    "substitution": "allow",
    "fractional": '"true"',
    "cores": '"30"',
    "gang-size": '"4"',
    "topology": "prefer",
    "within": "rdma",
    "framework": "pytorch",
    "profile": "pytorch-nvidia",
    "priority": '"10"',
}
"""What a claim is made of, each with a value that may be tried."""


def _acu_flops() -> float:
    worth, known = acu(accelerator(REFERENCE)).fp16, deliverable(accelerator(REFERENCE), "fp16")
    assert worth, "the reference has its own figure"
    assert known, "the reference has its own figure"
    return known[0] / worth


def _shown(key: str) -> str:
    return key if _NAME.fullmatch(key) else ascii(key[:64])


def _bytes(text: str) -> float:
    amount = units.parse(text, "bytes")
    if not 0 < amount < 2**60:
        raise UsageError(f"{text!r} is not an amount of memory")
    return amount


def _number(text: str) -> float:
    try:
        value = float(text) if re.fullmatch(r"[0-9]*\.?[0-9]+", text) else math.nan
    except ValueError:
        value = math.nan
    if not 0 < value < 1e9:
        raise UsageError(f"{text!r} is not a positive number")
    return value


def _percent(text: str) -> float:
    value = _number(text.removesuffix("%"))
    if value > 100:
        raise UsageError(f"{text!r} is more than 100 percent of a device")
    return value / 100


def _count(most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"[1-9][0-9]{0,8}", text) or int(text) > most:
            raise UsageError(f"{text!r} is not a whole number from 1 to {most}")
        return int(text)

    return read


def _priority(text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,9}", text):
        raise UsageError(f"{text!r} is not a whole number")
    return int(text)


def _truth(text: str) -> bool:
    if text not in ("true", "false"):
        raise UsageError(f"{text!r} should be true or false")
    return text == "true"


def _one_of(known: tuple[str, ...]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in known:
            raise UsageError(f"{text!r} should be one of {', '.join(known)}")
        return text

    return read


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise UsageError(f"{text!r} is not a valid name: letters, digits, dots and dashes, at most 63")
    return text


def _card(text: str) -> str:
    return accelerator(_name(text)).name
