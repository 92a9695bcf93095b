"""What a policy does, in words: for each layer whom it takes, where they run, and what they may do to others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from strata.bundled import bundled_table
from strata.host.machine.cpus import show
from strata.host.policy.policy import Confined, Grouped, Layer, LayerKind, Match, Open


@dataclass(frozen=True, slots=True)
class Explained:
    """A layer in words: `who` is one sentence, `how` are several."""

    name: str
    who: str
    how: tuple[str, ...]


def explain(layers: Sequence[Layer]) -> tuple[Explained, ...]:
    """Return what each layer of a policy does."""
    return tuple(
        Explained(layer.name, who(layer, is_first=index == 0), tuple(_how(layer.kind)))
        for index, layer in enumerate(layers)
    )


def who(layer: Layer, *, is_first: bool = False) -> str:
    """Return whom a layer takes, as a sentence."""
    before = "" if is_first else ", of those that no layer before took"
    if layer.matches == ((),):
        return f"Every thread{before}."
    blocks = list(_blocks(layer.matches))
    copies = f"; one layer like this for each cgroup where {_sentence(layer.template)}" if layer.template else ""
    return f"Threads where {'; or '.join(blocks)}{before}{copies}."


_WORDS: Final = bundled_table("strata.host.policy.lint", "explain.toml")
_CONDITIONS: Final[Mapping[str, str | list[str]]] = _WORDS["conditions"]


def _sentence(match: Match) -> str:
    words = _CONDITIONS[match.kind]
    if isinstance(words, list):
        return words[0] if match.value else words[1]
    return words.format(*(match.value if isinstance(match.value, tuple) else (match.value,)))


def _blocks(matches: Sequence[tuple[Match, ...]]) -> Iterator[str]:
    """Yield each block in words; single conditions of one kind are one sentence: begins with 'a', 'b' or 'c'."""
    alone: dict[str, list[Match]] = {}
    for block in matches:
        if len(block) == 1:
            alone.setdefault(block[0].kind, []).append(block[0])
    for block in matches:
        if len(block) != 1:
            yield " and ".join(_sentence(match) for match in block) or "anything"
        elif some := alone.pop(block[0].kind, None):
            words = _CONDITIONS[block[0].kind]
            if len(some) > 1 and isinstance(words, str) and words.endswith("{!r}"):
                values = [repr(match.value) for match in some]
                yield f"{words.removesuffix('{!r}')}{', '.join(values[:-1])} or {values[-1]}"
            else:
                yield "; or ".join(map(_sentence, some))


def _how(kind: LayerKind) -> Iterator[str]:
    yield from _where(kind)
    yield from _turns(kind)
    if kind.perf:
        yield f"Its CPUs are asked to run at {min(1.0, kind.perf / 1024):.0%} of their speed or more."
    if kind.idle_resume_us is not None:
        yield f"Its CPUs do not sleep deeper than {kind.idle_resume_us} us to wake up from."


def _where(kind: LayerKind) -> Iterator[str]:
    if isinstance(kind, Open):
        yield "Runs on CPUs that no layer owns first, and on owned ones that are idle and not protected."
    else:
        yield f"Owns {_count(kind)}{_growth(kind)}."
        if isinstance(kind, Grouped):
            when = " once its own are all busy" if kind.idle_confined else ""
            yield f"Also runs on idle CPUs of others that are not protected{when}."
        else:
            yield "Runs nowhere else."
        if kind.growth_algo != "Sticky":
            yield f"Takes CPUs {_WORDS['growth_algo'][kind.growth_algo]}."
        if kind.util_peak_half_life_ms:
            yield f"Gives CPUs back slowly: a peak of its load counts half after {kind.util_peak_half_life_ms} ms."
        if isinstance(kind, Grouped) and kind.util_includes_open_cputime:
            yield "What its threads run on CPUs of others counts as load of its own."
        if kind.protected:
            yield "Nobody else may use its CPUs, even idle ones."
        if kind.membw_gb is not None:
            yield f"Gets fewer CPUs while it moves more than {kind.membw_gb:g} GiB/s to and from memory."
    places = [f"NUMA nodes {show(kind.nodes)}"] * bool(kind.nodes) + [f"caches {show(kind.llcs)}"] * bool(
        kind.llcs
    )
    if places:
        yield f"Keeps to {' and '.join(places)}."
    if kind.skip_remote_node:
        yield "Does not look for idle CPUs on other NUMA nodes."
    low, high = kind.xnuma_threshold
    if low <= 0 and kind.xnuma_threshold_delta[0] <= 0:
        yield "Its threads may go to any NUMA node at any time."
    elif (kind.xnuma_threshold, kind.xnuma_threshold_delta) != ((0.6, 0.7), (0.2, 0.3)):
        less, more = kind.xnuma_threshold_delta
        yield (
            f"Its threads go to other NUMA nodes where one is over {high:.0%} busy and {more:.0%} above the mean "
            f"of all, until it is under {low:.0%} or {less:.0%}."
        )
    if kind.xllc_mig_min_us:
        yield f"A thread stays at its last-level cache where it waits less than {kind.xllc_mig_min_us:g} us there."
    if kind.placement == "Sticky":
        yield "A thread that wakes up queues on its previous CPU, idle or not."
    elif kind.placement == "Floating":
        yield "A thread that wakes up takes any idle CPU, wherever it ran before."
    if kind.prev_over_idle_core:
        yield "Stays on its previous CPU even where the core's other CPU is busy."


def _turns(kind: LayerKind) -> Iterator[str]:
    if kind.preempt:
        first = ", on its previous CPU first" if kind.preempt_first else ""
        yield f"Takes a CPU from threads of layers that do not preempt, where none is idle{first}."
    else:
        open_us, preempt_us = kind.disallow_open_after_us, kind.disallow_preempt_after_us
        if open_us is not None:
            yield f"A CPU that was busy for {open_us / 1e3:g} ms without a break takes no threads of other layers."
        if preempt_us is not None:
            yield f"After {preempt_us / 1e3:g} ms nobody may preempt there either."
    if kind.member_expire_ms:
        yield f"Whether a thread belongs to it is asked again after {kind.member_expire_ms} ms."
    if kind.exclusive:
        yield "Keeps the core's other CPU idle while it runs."
    if kind.yield_ignore:
        yield f"A thread that yields keeps {min(1.0, max(0.0, kind.yield_ignore)):.0%} of its slice."
    if kind.slice_us or kind.fifo:
        slice_ms = f"{kind.slice_us / 1e3:g} ms at a time" if kind.slice_us else "the default slice at a time"
        yield f"Runs {slice_ms}{', first come, first served' if kind.fifo else ''}."
    if kind.min_exec_us:
        yield f"Each turn counts as {kind.min_exec_us} us or more."
    yield f"Weighs {min(10_000, kind.weight or 100)} against the other layers where CPUs are short (100 is usual)."


def _growth(kind: Confined | Grouped) -> str:
    fixed = kind.cpus_range or kind.cpus_range_frac
    if fixed is not None and fixed[0] == fixed[1]:
        return ", always"
    low, high = kind.util_range
    return f"; takes more while they are over {high:.0%} busy, gives back under {low:.0%}"


def _count(kind: Confined | Grouped) -> str:
    if kind.cpus_range is not None:
        fewest, most = kind.cpus_range
        plural = "CPU" if most == 1 else "CPUs"
        return f"{most} {plural}" if fewest == most else f"{fewest} to {most} {plural}"
    if kind.cpus_range_frac is not None:
        least, greatest = kind.cpus_range_frac
        shares = f"{least:.0%}" if least == greatest else f"{least:.0%} to {greatest:.0%}"
        return f"{shares} of all CPUs, one at least"
    return "as many CPUs as it needs"
