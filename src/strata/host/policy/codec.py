"""Policies from and to the JSON of scx_layered, losing nothing: unknown keys are kept and told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, replace
from typing import Any, Final

from strata.host.policy import forms, text
from strata.host.policy.policy import KINDS, MATCHERS, Layer, LayerKind, Match
from strata.names import did_you_mean

LAYER_KEYS: Final = ("name", "comment", "template", "matches", "kind")
UNREAD: Final = Match("", None)
ANY_RANGE: Final = (0.0, 1.0)
"""What stands in a layer for a condition, and for a util_range, that could not be read."""


@dataclass(frozen=True, slots=True)
class ParseFault:
    """Something in a file that scx_layered refuses to read. `path` as in `[0].kind.Open.weight`."""

    path: str
    message: str


@dataclass(frozen=True, slots=True)
class UnknownKey:
    """A key that scx_layered drops without a word. `kind`: whose body it stands in; "" for the layer itself."""

    path: str
    key: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class ParsedPolicy:
    """A policy as far as it could be read.

    layers: those that scx_layered would read; None stands for one that it would not.
    partial: these too, with a placeholder for each part that is among the faults; None where little is left.
    unknown: also of layers that could not be read: a misspelt key is why a required one is missing.
    place: line and column of a path in the file; (0, 0) where it was read from none.
    """

    layers: tuple[Layer | None, ...]
    faults: tuple[ParseFault, ...]
    partial: tuple[Layer | None, ...] = ()
    unknown: tuple[UnknownKey, ...] = ()
    place: Callable[[str], tuple[int, int]] = lambda _: (0, 0)


def load(path: str) -> ParsedPolicy:
    """Read a policy file. Raises UsageError (no such file) or BadFile (no JSON), never for what it says."""
    source = text.load(path)
    return replace(read(source.data), place=source.place)


def read(data: Any) -> ParsedPolicy:
    """Return the layers of JSON data, and all that scx_layered would refuse to read."""
    if not isinstance(data, list):
        return ParsedPolicy((), (ParseFault("", "a policy should be a list of layers"),))
    faults: list[ParseFault] = []
    unknown: list[UnknownKey] = []
    layers: list[Layer | None] = []
    partial: list[Layer | None] = []
    for index, item in enumerate(data):
        before = len(faults)
        partial.append(_layer(item, f"[{index}]", faults, unknown))
        layers.append(partial[-1] if len(faults) == before else None)
    return ParsedPolicy(tuple(layers), tuple(faults), tuple(partial), tuple(unknown))


def dump(layers: Iterable[Layer]) -> list[dict[str, Any]]:
    """Return the JSON data of a policy: what is not the default, in the order of config.rs."""
    return [_dump_layer(layer) for layer in layers]


def _layer(data: Any, path: str, faults: list[ParseFault], unknown: list[UnknownKey]) -> Layer | None:
    if not isinstance(data, dict):
        faults.append(ParseFault(path, "a layer should be an object"))
        return None
    _told_twice(data, path, LAYER_KEYS, faults)
    name = _value(data, "name", forms.text, path, faults)
    comment = _value(data, "comment", forms.optional(forms.text), path, faults, default=None)
    template = None
    if data.get("template") is not None:
        template = _match(data["template"], f"{path}.template", faults)
    matches = _matches(data, path, faults)
    extra = {key: value for key, value in data.items() if key not in LAYER_KEYS}
    unknown.extend(UnknownKey(f"{path}.{key}", key) for key in extra)
    kind = _kind(data, path, faults, unknown)
    if name is None or kind is None:
        return None
    return Layer(name, matches, kind, comment, template, extra)


def _matches(data: Mapping[str, Any], path: str, faults: list[ParseFault]) -> tuple[tuple[Match, ...], ...]:
    blocks = data.get("matches")
    if not isinstance(blocks, list):
        problem = "should be a list of lists of conditions" if "matches" in data else "required key is missing"
        faults.append(ParseFault(f"{path}.matches", problem))
        return ()
    parsed: list[tuple[Match, ...]] = []
    for index, block in enumerate(blocks):
        where = f"{path}.matches[{index}]"
        if not isinstance(block, list):
            faults.append(ParseFault(where, "should be a list of conditions"))
            parsed.append((UNREAD,))
            continue
        parsed.append(
            tuple(
                _match(condition, f"{where}[{number}]", faults) or UNREAD for number, condition in enumerate(block)
            )
        )
    return tuple(parsed)


def _match(data: Any, path: str, faults: list[ParseFault]) -> Match | None:
    if not isinstance(data, dict) or len(data) != 1 or _doubled(data):
        faults.append(ParseFault(path, 'a condition should be an object of one key, as {"CommPrefix": "pt_"}'))
        return None
    ((kind, value),) = data.items()
    form = MATCHERS.get(kind)
    if form is None:
        faults.append(ParseFault(f"{path}.{kind}", f"no such condition{did_you_mean(kind, MATCHERS)}"))
        return None
    try:
        return Match(kind, form(value))
    except ValueError as error:
        faults.append(ParseFault(f"{path}.{kind}", str(error)))
        return None


def _kind(
    data: Mapping[str, Any], path: str, faults: list[ParseFault], unknown: list[UnknownKey]
) -> LayerKind | None:
    kind = data.get("kind")
    if not isinstance(kind, dict) or len(kind) != 1 or _doubled(kind):
        message = "should be an object of one key: Confined, Grouped or Open"
        faults.append(ParseFault(f"{path}.kind", message if "kind" in data else "required key is missing"))
        return None
    ((name, body),) = kind.items()
    made, where = KINDS.get(name), f"{path}.kind.{name}"
    if made is None:
        faults.append(ParseFault(where, f"no such kind{did_you_mean(name, KINDS)}"))
        return None
    if not isinstance(body, dict):
        faults.append(ParseFault(where, "should be an object"))
        return None
    known = {setting.name: setting for setting in _known(made)}
    _told_twice(body, where, known, faults)
    values = {}
    for key, setting in known.items():
        if key in body or setting.default is MISSING:
            before = len(faults)
            value = _value(body, key, setting.metadata["form"], where, faults)
            if len(faults) == before:
                values[key] = value
            elif setting.default is MISSING:
                values[key] = ANY_RANGE  # util_range, the only one that has to be there
    extra = {key: value for key, value in body.items() if key not in known}
    unknown.extend(UnknownKey(f"{where}.{key}", key, name) for key in extra)
    return made(**values, unknown=extra)


def _value(
    data: Mapping[str, Any], key: str, form: forms.Form, path: str, faults: list[ParseFault], *, default: Any = ...
) -> Any:
    if key not in data:
        if default is ...:
            faults.append(ParseFault(f"{path}.{key}", "required key is missing"))
            return None
        return default
    try:
        return form(data[key])
    except ValueError as error:
        faults.append(ParseFault(f"{path}.{key}", str(error)))
        return None


def _told_twice(data: Mapping[str, Any], path: str, known: Iterable[str], faults: list[ParseFault]) -> None:
    twice = [key for key in _doubled(data) if key in set(known)]
    faults.extend(ParseFault(f"{path}.{key}", "key given twice") for key in twice)


def _doubled(data: Mapping[str, Any]) -> tuple[str, ...]:
    return data.doubled if isinstance(data, text.Object) else ()


def _known(kind: type[LayerKind]) -> Sequence[Field[Any]]:
    return [setting for setting in fields(kind) if "form" in setting.metadata]


def _dump_layer(layer: Layer) -> dict[str, Any]:
    data: dict[str, Any] = {"name": layer.name}
    if layer.comment is not None:
        data["comment"] = layer.comment
    if layer.template is not None:
        data["template"] = _dump_match(layer.template)
    data["matches"] = [[_dump_match(match) for match in block] for block in layer.matches]
    body = {
        setting.name: _plain(getattr(layer.kind, setting.name))
        for setting in sorted(_known(type(layer.kind)), key=lambda setting: setting.default is not MISSING)
        if getattr(layer.kind, setting.name) != setting.default
    }
    data["kind"] = {type(layer.kind).__name__: {**body, **layer.kind.unknown}}
    return {**data, **layer.unknown}


def _dump_match(match: Match) -> dict[str, Any]:
    return {match.kind: _plain(match.value)}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
