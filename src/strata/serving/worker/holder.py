"""What a worker holds: layers of one plan or two, and the caches of the sequences that run on them.

The layers of the next plan are loaded beside those that serve; a plan's layers go when the plan is released and
nothing runs on them any more. Layers that two plans share are held once. Holds no clock and no thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from strata.errors import StrataError
from strata.serving.hosted import HostedModel

PARKED_S: Final = 10.0
"""How long what an interrupted attempt has cached waits for whoever goes on with it; less where room is needed."""
STOPPED: Final = 4096
"""Attempts that are remembered after their end: an abort may overtake the step it is about."""


class Refused(StrataError):
    """The worker is well, but does not do this. `is_at_fault`: this node cannot serve the plan at all."""

    def __init__(self, message: str, *, is_at_fault: bool = False) -> None:
        super().__init__(message)
        self.is_at_fault = is_at_fault


class AttemptKey(NamedTuple):
    """One attempt at a request."""

    request_id: str
    attempt: int


class StageMaker(Protocol):
    """Makes layers, what runs them, and caches for them: `model.Maker`, or a test's."""

    def layer(self, number: int) -> Any:
        """Return one layer; may take long."""

    def part(self, first: int, end: int, layers: Mapping[int, Any]) -> Any:
        """Return blocks [first, end) as something that runs."""

    def cache(self, max_tokens: int) -> Any:
        """Return the empty cache of a sequence."""


ROWS: Final = 8
"""Rows of every matrix of a decoding step, empty ones included: how sums are rounded depends on how many there
are, and no token may depend on who is served beside. So many go from stage to stage together (a microbatch)."""


class DecodeRow(NamedTuple):
    """One token of a sequence: its cache, the token or its hidden state [D], and where it is."""

    cache: Any
    given: Any
    position: int


class Draw(NamedTuple):
    """How the token at `position` is chosen: the likeliest at temperature 0, else drawn for (seed, position)."""

    temperature: float
    seed: int
    position: int


@dataclass(slots=True)
class Held:
    """Blocks [first, end) of a plan; `part` once they are loaded."""

    first: int
    end: int
    part: Any = None
    is_released: bool = False


@dataclass(slots=True)
class Sequence:
    """One attempt: whose layers it runs on, what it has cached, what it reserved, and when it last moved."""

    held: Held
    cache: Any
    kv_bytes: int
    moved_s: float


class Holder:
    """Layers by plan, sequences by attempt, and room for no more than the memory and the slots."""

    def __init__(self, model: HostedModel, maker: StageMaker, *, memory_bytes: float, slots: int) -> None:
        self.model, self.maker = model, maker
        self.memory_bytes, self.slots = memory_bytes, slots
        self.plans: dict[int, Held] = {}
        self.sequences: dict[AttemptKey, Sequence] = {}
        self.parked: dict[AttemptKey, Sequence] = {}
        self._layers: dict[int, Any] = {}
        self._stopped = OrderedDict[AttemptKey, None]()

    @property
    def loaded(self) -> tuple[int, ...]:
        """Plans whose layers are ready."""
        return tuple(version for version, held in self.plans.items() if held.part is not None)

    @property
    def kv_bytes(self) -> int:
        """Bytes reserved for keys and values."""
        return sum(each.kv_bytes for held in (self.sequences, self.parked) for each in held.values())

    @property
    def kv_capacity_bytes(self) -> float:
        """Bytes left for keys and values beside the weights of the larger plan.

        While two plans are held, the layers that only the smaller one needs come on top.
        """
        weights = max((self.model.weight_bytes(held.first, held.end) for held in self.plans.values()), default=0)
        return self.memory_bytes - weights

    def open(self, version: int, first: int, end: int) -> tuple[int, ...] | None:
        """Take a plan on; return the numbers of layers to make first, or None where it is there or on its way.

        Raises Refused where the layers do not fit, or the plan is here with others.
        """
        if not 0 <= first < end <= self.model.num_layers:
            raise Refused(f"a model of {self.model.num_layers} layers has no layers [{first}, {end})")
        if held := self.plans.get(version):
            if (held.first, held.end) != (first, end):
                raise Refused(f"plan {version} already has layers [{held.first}, {held.end})")
            held.is_released = False
            return None
        need_bytes = self.model.weight_bytes(first, end)
        if need_bytes > self.memory_bytes:
            raise Refused(
                f"layers [{first}, {end}) need {need_bytes} bytes; {self.memory_bytes:.0f} are available"
            )
        self.plans[version] = Held(first, end)
        return tuple(n for n in self.model.layer_numbers(first, end) if n not in self._layers)

    def close(self, version: int, made: Mapping[int, Any]) -> bool:
        """Put made layers in their place; return whether the plan is still wanted, and ready now."""
        held = self.plans.get(version)
        if held is None:
            return False
        self._layers.update(made)
        numbers = self.model.layer_numbers(held.first, held.end)
        held.part = self.maker.part(held.first, held.end, {n: self._layers[n] for n in numbers})
        return True

    def release(self, version: int) -> None:
        """Let a plan go, once nothing runs on it; one that is not here is let go already."""
        if held := self.plans.get(version):
            held.is_released = True
            self._tidy()

    def begin(
        self,
        key: AttemptKey,
        version: int,
        first: int,
        end: int,
        *,
        kv_tokens: int,
        now_s: float,
        source: AttemptKey | None = None,
    ) -> Sequence:
        """Reserve a slot and memory for a sequence. source: whose parked memory goes over to it, layer by layer.

        Raises Refused: the plan is not ready here, or there is no room.
        """
        held = self.plans.get(version)
        if held is None or held.part is None or (held.first, held.end) != (first, end):
            raise Refused(f"layers [{first}, {end}) of plan {version} are not ready", is_at_fault=True)
        if key in self.sequences or key in self._stopped:
            what = "is already running" if key in self.sequences else "was stopped"
            raise Refused(f"attempt {key.attempt} of {key.request_id} {what}")
        if len(self.sequences) >= self.slots:
            raise Refused(f"all {self.slots} slots are taken")
        kv_bytes = self.model.kv_bytes(first, end, tokens=kv_tokens)
        room = self.kv_capacity_bytes - self.kv_bytes
        if source in self.parked:
            room += self.parked[source].kv_bytes
        for other in [each for each in self.parked if each != source]:
            if kv_bytes > room:
                room += self.parked.pop(other).kv_bytes
        if kv_bytes > room:
            room = max(0.0, room)
            raise Refused(f"{kv_tokens} tokens need {kv_bytes} bytes of KV memory; {room:.0f} are free")
        self.sequences[key] = sequence = Sequence(held, self.maker.cache(kv_tokens), kv_bytes, now_s)
        return sequence

    def end(self, key: AttemptKey) -> None:
        """Free what a sequence holds; one that is not here has ended already."""
        if self.sequences.pop(key, None) is not None:
            self._tidy()

    def park(self, key: AttemptKey, now_s: float) -> None:
        """Keep what a sequence has cached, without its slot: until it is taken, room is needed, or for a while."""
        if sequence := self.sequences.pop(key, None):
            sequence.moved_s = now_s
            self.parked[key] = sequence
            self._tidy()

    def drop(self, before_s: float) -> None:
        """Forget what was parked before."""
        self.parked = {key: parked for key, parked in self.parked.items() if parked.moved_s >= before_s}

    def stop(self, key: AttemptKey) -> None:
        """Free what a sequence holds, for good: a step of it that comes late must not begin it anew."""
        self._stopped[key] = None
        if len(self._stopped) > STOPPED:
            self._stopped.popitem(last=False)
        self.parked.pop(key, None)
        self.end(key)

    def idle(self, before_s: float, driven: Iterable[AttemptKey] = ()) -> list[AttemptKey]:
        """Return the sequences that have not moved since, but for those driven from here."""
        kept = set(driven)
        return [key for key, held in self.sequences.items() if held.moved_s < before_s and key not in kept]

    def _tidy(self) -> None:
        used = {id(sequence.held) for sequence in self.sequences.values()}
        for version, held in list(self.plans.items()):
            if held.is_released and id(held) not in used:
                del self.plans[version]
        wanted = {n for held in self.plans.values() for n in self.model.layer_numbers(held.first, held.end)}
        self._layers = {n: layer for n, layer in self._layers.items() if n in wanted}
