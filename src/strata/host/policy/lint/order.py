"""Who gets a thread: the first layer that matches. Layers behind one that takes all, and what can never match."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from strata.host.policy.lint.finding import LintFinding, Place, finding_at
from strata.host.policy.logic import contradiction, covers, is_always, leave_none
from strata.host.policy.policy import MAX_ANDS, MAX_LAYERS, MAX_ORS, Match

Block = tuple[Match, ...]


def order(layers: Sequence[Place], *, count: int) -> Iterator[LintFinding]:
    """Yield what is wrong with the order of layers. `count`: layers of the file, readable or not."""
    if not 1 <= count <= MAX_LAYERS:
        yield finding_at("policy-size", "", count=count, limit=MAX_LAYERS)
    names: dict[str, Place] = {}
    for at in layers:
        is_last = at.index == count - 1
        if is_last and at.layer.matches != ((),):
            yield finding_at("catch-all-missing", f"{at.path}.matches", name=at.layer.name)
        if not is_last:
            yield from _early(at)
        yield from _never(at)
        if at.layer.name in names:
            yield finding_at("layer-name-twice", f"{at.path}.name", name=at.layer.name)
        names.setdefault(at.layer.name, at)
    # A policy beyond the limits is refused anyway; comparing all its blocks would take minutes.
    if count <= MAX_LAYERS and all(len(at.layer.matches) <= MAX_ORS for at in layers):
        yield from _shadowed(layers, count=count)


def _early(at: Place) -> Iterator[LintFinding]:
    if not at.layer.matches:
        yield finding_at("matches-empty", f"{at.path}.matches", name=at.layer.name)
    # With a template each block gets one condition more, unless no cgroup fits it.
    if at.layer.template is None:
        for number, block in enumerate(at.layer.matches):
            if all(is_always(match) for match in block):
                yield finding_at("catch-all-early", at.block(number), name=at.layer.name)
        if leave_none([block[0] for block in at.layer.matches if len(block) == 1]):
            yield finding_at("catch-all-early", f"{at.path}.matches", name=at.layer.name)


def _never(at: Place) -> Iterator[LintFinding]:
    for number, block in enumerate(at.layer.matches):
        if why := contradiction(block[:MAX_ANDS]):
            yield finding_at("match-never", at.block(number), why=why)


def _shadowed(layers: Sequence[Place], *, count: int) -> Iterator[LintFinding]:
    for place, at in enumerate(layers):
        if at.index == count - 1 and at.layer.matches == ((),):
            continue
        takers = {
            number: taker
            for number, block in enumerate(at.layer.matches)
            if (taker := _taker(block, layers[:place])) is not None
        }
        if takers and len(takers) == len(at.layer.matches):
            by = ", ".join(dict.fromkeys(taker.layer.name for taker in takers.values()))
            yield finding_at("layer-shadowed", at.path, name=at.layer.name, by=by)
        else:
            for number, taker in takers.items():
                yield finding_at("match-shadowed", at.block(number), by=taker.layer.name)


def _taker(block: Block, earlier: Sequence[Place]) -> Place | None:
    """Return the first layer that takes all that a block matches."""
    for at in earlier:
        if at.layer.template is None and any(covers(other, block) for other in at.layer.matches):
            return at
    return None
