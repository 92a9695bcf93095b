"""Policies from and to the JSON of scx_layered, losing nothing: unknown keys are kept and reported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from typing import Any, Final, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from strata.host.policy import text
from strata.host.policy.policy import KINDS, MATCHERS, Layer, LayerKind, Match
from strata.names import did_you_mean

LAYER_KEYS: Final = ("name", "comment", "template", "matches", "kind")
UNREAD: Final = Match("", None)
ANY_RANGE: Final = (0.0, 1.0)
"""What stands for a condition (while reading, for any value), and for a util_range, that could not be read."""
TYPES: Final[Mapping[str, Mapping[str, Any]]] = {
    name: {key: form for key, form in get_type_hints(kind, include_extras=True).items() if key != "unknown"}
    for name, kind in KINDS.items()
}
"""The keys of each kind of layer, and their types."""
_SHOULD_BE: Final[Mapping[str, str]] = {
    "bool_type": "true or false",
    "string_type": "text",
    "float_type": "a number",
    "int_type": "a whole number",
    "tuple_type": "a list",
    "missing": "a list of two",
    "too_long": "a list of two",
}
"""What to say by pydantic's kind of error."""


@dataclass(frozen=True, slots=True)
class ParseFault:
    """Something in a file that scx_layered refuses to read. `path` as in `[0].kind.Open.weight`."""

    path: str
    message: str


@dataclass(frozen=True, slots=True)
class UnknownKey:
    """A key that scx_layered drops silently. `kind`: whose body it stands in; "" for the layer itself."""

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
    reader = _Reader()
    layers: list[Layer | None] = []
    partial: list[Layer | None] = []
    for index, item in enumerate(data):
        before = len(reader.faults)
        partial.append(reader.layer(item, f"[{index}]"))
        layers.append(partial[-1] if len(reader.faults) == before else None)
    return ParsedPolicy(tuple(layers), tuple(reader.faults), tuple(partial), tuple(reader.unknown))


def dump(layers: Iterable[Layer]) -> list[dict[str, Any]]:
    """Return the JSON data of a policy: what is not the default, in the order of config.rs."""
    return [_dump_layer(layer) for layer in layers]


@cache
def _adapter(form: Any) -> TypeAdapter[Any]:
    # As strict as serde: 1.0 is not an integer, "1" not a number.
    return TypeAdapter(form, config=ConfigDict(strict=True))


class _Reader:
    """Collects what scx_layered would refuse, and what it would drop, on the way through a policy."""

    def __init__(self) -> None:
        self.faults: list[ParseFault] = []
        self.unknown: list[UnknownKey] = []

    def layer(self, data: Any, path: str) -> Layer | None:
        if isinstance(data, list) and len(data) == len(LAYER_KEYS):
            data = dict(zip(LAYER_KEYS, data, strict=True))  # serde takes the fields in their order, too
        if not isinstance(data, dict):
            self._fault(path, "a layer should be an object")
            return None
        self._given_twice(data, path, LAYER_KEYS)
        name = self._required(data, "name", path) and self._value(data["name"], str, f"{path}.name")
        comment = self._value(data.get("comment"), str | None, f"{path}.comment")
        template = data.get("template")
        if template is not None:
            template = self._match(template, f"{path}.template")
        matches = self._matches(data, path)
        extra = {key: value for key, value in data.items() if key not in LAYER_KEYS}
        self.unknown.extend(UnknownKey(f"{path}.{key}", key) for key in extra)
        kind = self._kind(data, path)
        if not isinstance(name, str) or kind is None:
            return None
        return Layer(name, matches, kind, comment, template, extra)

    def _matches(self, data: Mapping[str, Any], path: str) -> tuple[tuple[Match, ...], ...]:
        if not self._required(data, "matches", path):
            return ()
        blocks, where = data["matches"], f"{path}.matches"
        if not isinstance(blocks, list):
            self._fault(where, "should be a list of lists of conditions")
            return ()
        return tuple(self._block(block, f"{where}[{index}]") for index, block in enumerate(blocks))

    def _block(self, block: Any, path: str) -> tuple[Match, ...]:
        if not isinstance(block, list):
            self._fault(path, "should be a list of conditions")
            return (UNREAD,)
        return tuple(self._match(item, f"{path}[{number}]") or UNREAD for number, item in enumerate(block))

    def _match(self, data: Any, path: str) -> Match | None:
        if not isinstance(data, dict) or len(data) != 1 or _doubled(data):
            self._fault(path, 'a condition should be an object of one key, as {"CommPrefix": "pt_"}')
            return None
        ((kind, value),) = data.items()
        path = f"{path}.{kind}"
        if kind not in MATCHERS:
            self._fault(path, f"no such condition{did_you_mean(kind, MATCHERS)}")
            return None
        value = self._value(value, MATCHERS[kind], path)
        return Match(kind, value) if value is not UNREAD else None

    def _kind(self, data: Mapping[str, Any], path: str) -> LayerKind | None:
        if not self._required(data, "kind", path):
            return None
        kind, path = data["kind"], f"{path}.kind"
        if not isinstance(kind, dict) or len(kind) != 1 or _doubled(kind):
            self._fault(path, "should be an object of one key: Confined, Grouped or Open")
            return None
        ((name, body),) = kind.items()
        kind_class, path = KINDS.get(name), f"{path}.{name}"
        if kind_class is None:
            self._fault(path, f"no such kind{did_you_mean(name, KINDS)}")
            return None
        if not isinstance(body, dict):
            self._fault(path, "should be an object")
            return None
        types = TYPES[name]
        self._given_twice(body, path, types)
        values = {
            key: value
            for key, form in types.items()
            if key in body and (value := self._value(body[key], form, f"{path}.{key}")) is not UNREAD
        }
        if "util_range" in types:  # the only one that has to be there
            self._required(body, "util_range", path)
            values.setdefault("util_range", ANY_RANGE)
        extra = {key: value for key, value in body.items() if key not in types}
        self.unknown.extend(UnknownKey(f"{path}.{key}", key, name) for key in extra)
        return kind_class(**values, unknown=extra)

    def _value(self, value: Any, form: Any, path: str) -> Any:
        """Return a value as its type has it; UNREAD, with a fault noted, where it is of another."""
        try:
            return _adapter(form).validate_python(tuple(value) if isinstance(value, list) else value)
        except ValidationError as error:
            problem = error.errors()[0]
            should_be = _SHOULD_BE.get(problem["type"])
            message = f"should be {should_be}" if should_be else problem["msg"].removeprefix("Input ")
            self._fault(path, message)
            return UNREAD

    def _required(self, data: Mapping[str, Any], key: str, path: str) -> bool:
        if key not in data:
            self._fault(f"{path}.{key}", "required key is missing")
        return key in data

    def _given_twice(self, data: Mapping[str, Any], path: str, known: Iterable[str]) -> None:
        for key in set(known).intersection(_doubled(data)):
            self._fault(f"{path}.{key}", "key given twice")

    def _fault(self, path: str, message: str) -> None:
        self.faults.append(ParseFault(path, message))


def _doubled(data: Mapping[str, Any]) -> tuple[str, ...]:
    return data.doubled if isinstance(data, text.Object) else ()


def _dump_layer(layer: Layer) -> dict[str, Any]:
    data: dict[str, Any] = {"name": layer.name}
    if layer.comment is not None:
        data["comment"] = layer.comment
    if layer.template is not None:
        data["template"] = _dump_match(layer.template)
    data["matches"] = [[_dump_match(match) for match in block] for block in layer.matches]
    body = {
        key.name: _plain(getattr(layer.kind, key.name))
        for key in sorted(fields(layer.kind), key=lambda key: key.default is not MISSING)
        if key.name != "unknown" and getattr(layer.kind, key.name) != key.default
    }
    data["kind"] = {type(layer.kind).__name__: {**body, **layer.kind.unknown}}
    return {**data, **layer.unknown}


def _dump_match(match: Match) -> dict[str, Any]:
    return {match.kind: _plain(match.value)}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
