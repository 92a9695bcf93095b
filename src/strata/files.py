"""Files at the edge: strict YAML and JSON with file:line:col, all faults at once, atomic writes.

pydantic models live only here and in the rooms' `schema.py`; inside, everything is a frozen dataclass.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, NoReturn, TypeVar, Union, cast, get_args, get_origin

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from strata import units
from strata.errors import BadFile, Fault, UsageError, help_with
from strata.names import closest

API_VERSION: Final = "strata/v1alpha1"
MAX_BYTES: Final = 16 * 2**20
"""A fleet of 10,000 links is under 2 MB; a larger file is a mistake, and YAML would take minutes to read it."""
MAX_DEPTH: Final = 64
"""Ours nest 6 deep; deeper than this is a mistake, and would end in Python's own recursion limit."""

Path_ = tuple[str | int, ...]
ModelT = TypeVar("ModelT", bound=BaseModel)


class FileModel(BaseModel):
    """Base of every file model: unknown keys are errors, values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False)


def _quantity(dimension: units.Dimension) -> BeforeValidator:
    def read(value: Any) -> float:
        try:
            return units.parse(value, dimension)
        except UsageError as error:
            raise PydanticCustomError("quantity", "{text}", {"text": str(error)}) from None

    described = Field(description=f"{dimension.replace('_', ' ')}: {units.EXAMPLE[dimension]}")
    return BeforeValidator(read, json_schema_input_type=Annotated[str | float, described])


Bandwidth = Annotated[float, _quantity("bandwidth")]
Bytes = Annotated[float, _quantity("bytes")]
Seconds = Annotated[float, _quantity("time")]
Flops = Annotated[float, _quantity("flops")]
Usd = Annotated[float, _quantity("usd")]
UsdPerHour = Annotated[float, _quantity("usd_per_hour")]
UsdPerByte = Annotated[float, _quantity("usd_per_byte")]
Tokens = Annotated[float, _quantity("tokens")]


class Document:
    """A parsed YAML or JSON file that remembers where each key stood."""

    def __init__(self, path: str, data: Any, places: dict[Path_, tuple[int, int]]) -> None:
        self.path = path
        self.data = data
        self._places = places

    def fault(self, where: Path_, message: str) -> Fault:
        """Return a fault at the nearest known place above `where`."""
        for depth in range(len(where), -1, -1):
            place = self._places.get(where[:depth])
            if place is not None:
                return Fault(self.path, message, *place, where=".".join(map(str, where)))
        return Fault(self.path, message, where=".".join(map(str, where)))

    def check(self, model: type[ModelT]) -> ModelT:
        """Validate against a file model. Raises BadFile with every fault and its place."""
        try:
            return model.model_validate(self.data)
        except ValidationError as error:
            items, errors = error.errors(), {item["loc"][:-1] for item in error.errors()}
            # A list whose items are wrong is not also too short.
            whole = [item for item in items if item["type"] != "too_short" or item["loc"] not in errors]
            raise BadFile([self._explain(item, model) for item in whole]) from None

    def _explain(self, item: ErrorDetails, model: type[BaseModel]) -> Fault:
        where = self._keys_of(item)
        if item["type"] == "extra_forbidden":
            known = sorted(_known_keys(model, where[:-1]))
            close = closest(str(where[-1]), known)
            meant = f" (did you mean {close!r}?)" if close else f" (known: {', '.join(known)})"
            return self.fault(where, f"unknown key{meant}")
        if item["type"] == "too_short":
            return self.fault(where, f"holds {len(item['input'])} items, and needs {item['ctx']['min_length']}")
        message = _MESSAGES.get(item["type"]) or item["msg"].removeprefix("Value error, ")
        return self.fault(where, message.replace("Input should", "should", 1))

    def _keys_of(self, item: ErrorDetails) -> Path_:
        """Return the keys of the file in a pydantic path, which also names union members and validators."""
        where: list[str | int] = []
        value = self.data
        for part in item["loc"]:
            try:
                value = value[part]
            except (KeyError, IndexError, TypeError):
                continue
            where.append(part)
        if item["type"] == "missing":
            where.append(item["loc"][-1])
        return tuple(where)


_MESSAGES: Final = {
    "missing": "required key is missing",
    "model_type": "should be a mapping (`key: value`)",
    "model_attributes_type": "should be a mapping (`key: value`)",
    "dict_type": "should be a mapping (`key: value`)",
    "list_type": "should be a list (`- item`)",
    "tuple_type": "should be a list (`- item`)",
    "string_type": "should be text; put it in quotes if it is",
}


def json_schema(model: type[FileModel]) -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a file model, under the names a file uses."""
    return cast("dict[str, Any]", _tidy(model.model_json_schema(by_alias=True)))


def _tidy(schema: Any) -> Any:
    """Leave out pydantic's titles, which repeat the key, and its bounds of quantities, which JSON schema lacks."""
    if isinstance(schema, dict):
        return {
            key: _tidy(value)
            for key, value in schema.items()
            if not (key == "title" and isinstance(value, str))
            and not (key in ("gt", "ge", "lt", "le") and isinstance(value, (int, float)))
        }
    return [_tidy(item) for item in schema] if isinstance(schema, list) else schema


def read_document(path: str | Path) -> Document:
    """Read a YAML or JSON file. Raises BadFile for anything else, and UsageError for a missing file."""
    return parse_document(str(path), read_text(path))


def parse_document(name: str, text: str) -> Document:
    """Read YAML or JSON. Raises BadFile for anything else; its faults name what was read."""
    builder = _Builder(name)
    try:
        data = builder.build(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        raise BadFile([Fault(name, f"not YAML: {error.problem}", line, column)]) from None
    except yaml.reader.ReaderError as error:
        line, column = _line_and_column(text.encode(), text.encode().find(chr(error.character).encode()))
        message = f"character U+{error.character:04X} is not allowed in YAML"
        raise BadFile([Fault(name, message, line, column)]) from None
    if builder.faults:
        raise BadFile(builder.faults)
    return Document(name, data, builder.places)


def read_text(path: str | Path, *, max_bytes: int = MAX_BYTES) -> str:
    """Read a UTF-8 text file of a sane size. Raises UsageError or BadFile."""
    file = Path(path)
    try:
        if file.is_dir():
            raise UsageError(f"{path}: is a directory, not a file")
        with file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            # A pipe or a device has no size, so the read itself is bounded as well.
            raw = stream.read(max_bytes + 1) if size <= max_bytes else b""
        if max(size, len(raw)) > max_bytes:
            raise UsageError(
                f"{path}: larger than {units.show_bytes(max_bytes)}, the most strata reads of such a file",
                hint="check that this is the file you meant",
            )
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file{_nearby(file)}") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", hint=help_with(error)) from None
    except ValueError as error:  # a NUL in the name
        raise UsageError(f"{str(path)!r} is not a file name: {error}") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadFile([Fault(str(path), "not UTF-8 text", *_line_and_column(raw, error.start))]) from None


def _line_and_column(raw: bytes, offset: int) -> tuple[int, int]:
    """Return where a byte stands: its line, and its column in characters, both from 1."""
    start = raw.rfind(b"\n", 0, offset) + 1
    return raw.count(b"\n", 0, offset) + 1, len(raw[start:offset].decode("utf-8-sig")) + 1


def _nearby(file: Path) -> str:
    with contextlib.suppress(OSError):
        close = closest(file.name, [p.name for p in file.parent.iterdir()])
        if close:
            return f" (did you mean {file.parent / close}?)"
    return ""


def read_json(path: str | Path, *, max_bytes: int = MAX_BYTES) -> Any:
    """Read a JSON file fast, without places for its keys. Raises BadFile with line and column."""
    text = read_text(path, max_bytes=max_bytes)
    try:
        return json.loads(text, parse_constant=_not_a_number)
    except json.JSONDecodeError as error:
        raise BadFile([Fault(str(path), f"not JSON: {error.msg}", error.lineno, error.colno)]) from None
    except RecursionError:
        raise BadFile([Fault(str(path), "not usable JSON: nested too deeply")]) from None
    except ValueError as error:  # NaN, or an integer of thousands of digits
        raise BadFile([Fault(str(path), f"not JSON: {error}")]) from None


def _not_a_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


class _Builder:
    """Builds plain data from YAML events, noting faults and where each key stood.

    Works on events, not on the composed tree: composing recurses in C (100,000 open brackets end the
    process) and resolves aliases (nine lines can stand for gigabytes), so both are refused here first.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.places: dict[Path_, tuple[int, int]] = {}
        self.faults: list[Fault] = []

    def build(self, text: str) -> Any:
        """Return the document of a text. Raises BadFile where there is none, or no end of it."""
        events = yaml.parse(text, Loader=yaml.CSafeLoader)
        next(events)
        if isinstance(next(events), yaml.StreamEndEvent):
            raise BadFile([Fault(self.name, "the file is empty", 1, 1)])
        data = self._value(next(events), events, ())
        next(events)
        if not isinstance(second := next(events), yaml.StreamEndEvent):
            self._fault(second, (), "a second document starts here; one file holds one")
        return data

    def _fault(self, event: yaml.Event, where: Path_, message: str) -> None:
        self.faults.append(Fault(self.name, message, *_place(event), where=".".join(map(str, where))))

    def _value(self, event: yaml.Event, events: Iterator[yaml.Event], where: Path_) -> Any:
        self.places.setdefault(where, _place(event))
        if len(where) > MAX_DEPTH:
            raise BadFile([Fault(self.name, f"nested more than {MAX_DEPTH} deep", *_place(event))])
        if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
            self._fault(event, where, "anchors and aliases (&, *) are not read; write the value out")
        elif isinstance(event, (yaml.ScalarEvent, yaml.CollectionStartEvent)) and event.tag is not None:
            self._fault(event, where, f"tags ({event.tag}) are not read; write plain YAML")
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(events, where)
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Any] = []
            while not isinstance(event := next(events), yaml.SequenceEndEvent):
                items.append(self._value(event, events, (*where, len(items))))
            return items
        return _scalar(event) if isinstance(event, yaml.ScalarEvent) else None

    def _mapping(self, events: Iterator[yaml.Event], where: Path_) -> dict[str, Any]:
        result: dict[str, Any] = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                self._fault(event, where, "a key must be plain text")
                self._value(event, events, (*where, "?"))
                self._value(next(events), events, (*where, "?"))
                continue
            key = str(event.value)
            if key in result:
                self._fault(event, (*where, key), "key given twice")
            self.places[(*where, key)] = _place(event)
            result[key] = self._value(next(events), events, (*where, key))
        return result


def _place(event: yaml.Event) -> tuple[int, int]:
    mark = event.start_mark
    return (mark.line + 1, mark.column + 1) if mark else (0, 0)


_constructor = yaml.constructor.SafeConstructor()


class _Resolver(yaml.resolver.Resolver):
    """YAML 1.1, and the floats of JSON that it takes for text because they have no dot: 1e-05."""


_Resolver.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"-?(0|[1-9][0-9]*)[eE][-+]?[0-9]+$"), list("-0123456789")
)
_resolver = _Resolver()


def _scalar(event: yaml.ScalarEvent) -> Any:
    tag = _resolver.resolve(yaml.ScalarNode, event.value, event.implicit)  # type: ignore[no-untyped-call]
    # Dates stay text: no file of ours has one, and a name like 2024-01-01 must not change its type.
    if tag == "tag:yaml.org,2002:timestamp":
        return event.value
    try:
        return _constructor.construct_object(yaml.ScalarNode(tag, event.value))
    except (yaml.YAMLError, ValueError):
        return event.value


def _known_keys(model: type[BaseModel], where: Path_) -> set[str]:
    """Return the keys allowed at `where`, of all members where it may be one of several models."""
    annotations: list[Any] = [model]
    for part in where:
        annotations = [inner for annotation in annotations for inner in _inside(annotation, part)]
    models = [m for annotation in annotations for m in _models_in(annotation)]
    return {field.alias or key for m in models for key, field in m.model_fields.items()}


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models an annotation allows, through unions but not through containers."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in _UNIONS:
        for member in get_args(annotation):
            yield from _models_in(member)


def _inside(annotation: Any, part: str | int) -> Iterator[Any]:
    """Yield the annotations of what stands under `part` of such a value."""
    if get_origin(annotation) in _UNIONS:
        for member in get_args(annotation):
            yield from _inside(member, part)
    elif get_origin(annotation) is not None:  # list[T], tuple[T, ...], dict[K, T]
        yield from get_args(annotation)
    for model in _models_in(annotation) if get_origin(annotation) is None else ():
        yield from (field.annotation for name, field in model.model_fields.items() if part in (name, field.alias))


_UNIONS: Final = (Union, UnionType, Annotated)


def bundled_names(folder: Path) -> list[str]:
    """Return the names of the YAML files that come with strata in a folder, sorted."""
    return sorted(file.stem for file in folder.glob("*.yaml"))


def bundled(folder: Path, name: str, *, what: str) -> Path:
    """Return a bundled file by name. Raises UsageError naming the ones there are."""
    names = bundled_names(folder)
    if name not in names:
        close = closest(name, names)
        raise UsageError(
            f"{name}: no such file, and no bundled {what} (there are: {', '.join(names)})",
            hint=close if close else None,
        )
    return folder / f"{name}.yaml"


def file_or_bundled(source: str | Path, folder: Path, *, what: str) -> Path:
    """Return the file of a source: its path, or what is bundled by that name where no such file exists.

    Raises UsageError where there is neither.
    """
    path = Path(source)
    # Not just any suffix: `llama-3.1-70b` is a name.
    is_path = path.is_file() or path.suffix in (".yaml", ".yml", ".json") or len(path.parts) > 1
    return path if is_path else bundled(folder, str(source), what=what)


def write_text(path: str | Path, text: str) -> None:
    """Write text by `write_bytes`; a path that ends in `.gz` is compressed, the same bytes for the same text."""
    raw = text.encode("utf-8")
    write_bytes(path, gzip.compress(raw, mtime=0) if str(path).endswith(".gz") else raw)


def write_bytes(path: str | Path, raw: bytes) -> None:
    """Replace a file atomically: readers see the old content or the new, never half of it.

    A link is followed and an existing file keeps its mode. A device or a pipe is written to, not replaced.
    """
    target = Path(os.path.realpath(path))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists() and not target.is_file():
            target.write_bytes(raw)
            return
        temporary = target.with_name(f".strata-{secrets.token_hex(8)}")
        try:
            with temporary.open("xb") as stream:
                stream.write(raw)
                stream.flush()
                os.fsync(stream.fileno())
            if target.exists():
                temporary.chmod(target.stat().st_mode)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}", hint=help_with(error)) from None


def write_json(path: str | Path, data: Any) -> None:
    """Write JSON atomically, keys in their given order. ValueError for NaN and infinity, which JSON lacks."""
    write_text(path, json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
