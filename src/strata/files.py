"""Files at the edge: strict YAML and JSON with file:line:col, all faults at once, atomic writes.

pydantic models live only here and in the rooms' `schema.py`; inside, everything is a frozen dataclass.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from strata import units
from strata.errors import BadFile, Fault, UsageError

API_VERSION: Final = "strata/v1alpha1"
MAX_BYTES: Final = 16 * 2**20
"""A fleet of 10,000 links is under 2 MB; a larger file is a mistake, and YAML would take minutes to read it."""

Path_ = tuple[str | int, ...]
ModelT = TypeVar("ModelT", bound="FileModel")


class FileModel(BaseModel):
    """Base of every file model: unknown keys are errors, values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def _quantity(dimension: units.Dimension) -> BeforeValidator:
    def read(value: Any) -> float:
        try:
            return units.parse(value, dimension)
        except UsageError as error:
            raise PydanticCustomError("quantity", "{text}", {"text": str(error)}) from None

    return BeforeValidator(read, json_schema_input_type=str | float)


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
            raise BadFile([self._explain(item, model) for item in error.errors()]) from None

    def _explain(self, item: ErrorDetails, model: type[BaseModel]) -> Fault:
        where = tuple(part for part in item["loc"] if not _is_union_tag(part, self.data, item["loc"]))
        if item["type"] == "extra_forbidden":
            known = _known_keys(model, where[:-1])
            close = difflib.get_close_matches(str(where[-1]), known, n=1)
            meant = f" (did you mean {close[0]!r}?)" if close else f" (known: {', '.join(sorted(known))})"
            return self.fault(where, f"unknown key{meant}")
        if item["type"] == "missing":
            return self.fault(where, "required key is missing")
        return self.fault(where, item["msg"].removeprefix("Value error, "))


def read_document(path: str | Path) -> Document:
    """Read a YAML or JSON file. Raises BadFile for what is no such text, and UsageError for a missing file."""
    name, text = str(path), read_text(path)
    try:
        node = yaml.compose(text, Loader=yaml.CSafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        raise BadFile([Fault(name, error.problem or "not YAML", line, column)]) from None
    except yaml.YAMLError as error:
        raise BadFile([Fault(name, str(error).splitlines()[0])]) from None
    if node is None:
        raise BadFile([Fault(name, "the file is empty", 1, 1)])
    places: dict[Path_, tuple[int, int]] = {}
    faults: list[Fault] = []
    data = _build(node, (), places, faults, name)
    if faults:
        raise BadFile(faults)
    return Document(name, data, places)


def read_text(path: str | Path, *, max_bytes: int = MAX_BYTES) -> str:
    """Read a UTF-8 text file of a sane size. Raises UsageError or BadFile."""
    file = Path(path)
    try:
        if file.is_dir():
            raise UsageError(f"{path}: is a directory, not a file")
        size = file.stat().st_size
        if size > max_bytes:
            raise UsageError(
                f"{path}: {units.show_bytes(size)} is larger than {units.show_bytes(max_bytes)}, "
                "the most strata reads of such a file",
                hint="check that this is the file you meant",
            )
        raw = file.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file", hint=_nearby(file)) from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        column = error.start - (raw.rfind(b"\n", 0, error.start) + 1) + 1
        raise BadFile([Fault(str(path), "not UTF-8 text", line, column)]) from None


def _nearby(file: Path) -> str | None:
    with contextlib.suppress(OSError):
        close = difflib.get_close_matches(file.name, [p.name for p in file.parent.iterdir()], n=1)
        if close:
            return f"did you mean {file.parent / close[0]}?"
    return None


def read_json(path: str | Path, *, max_bytes: int = MAX_BYTES) -> Any:
    """Read a JSON file fast, without places for its keys. Raises BadFile with line and column."""
    text = read_text(path, max_bytes=max_bytes)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise BadFile([Fault(str(path), f"not JSON: {error.msg}", error.lineno, error.colno)]) from None
    except RecursionError:
        raise BadFile([Fault(str(path), "not usable JSON: nested too deeply")]) from None


def _build(node: Node, where: Path_, places: dict[Path_, tuple[int, int]], faults: list[Fault], name: str) -> Any:
    places.setdefault(where, (node.start_mark.line + 1, node.start_mark.column + 1))
    if isinstance(node, MappingNode):
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            place = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            if not isinstance(key_node, ScalarNode):
                faults.append(Fault(name, "a key must be plain text", *place))
                continue
            key = str(key_node.value)
            if key in result:
                faults.append(Fault(name, "key given twice", *place, where=".".join(map(str, (*where, key)))))
            places[(*where, key)] = place
            result[key] = _build(value_node, (*where, key), places, faults, name)
        return result
    if isinstance(node, SequenceNode):
        return [_build(item, (*where, index), places, faults, name) for index, item in enumerate(node.value)]
    return _scalar(node)


_constructor = yaml.constructor.SafeConstructor()


def _scalar(node: Node) -> Any:
    # Dates stay text: no file of ours has one, and a name like 2024-01-01 must not change its type.
    if node.tag == "tag:yaml.org,2002:timestamp":
        return node.value
    try:
        return _constructor.construct_object(node)
    except (yaml.YAMLError, ValueError):
        return node.value


def _is_union_tag(part: str | int, data: Any, loc: tuple[str | int, ...]) -> bool:
    """Tell pydantic's own path parts (union members, validators) from the file's keys."""
    current = data
    for step in loc:
        if step is part and isinstance(part, str) and (part.startswith("function-") or "[" in part):
            return True
        with contextlib.suppress(KeyError, IndexError, TypeError):
            current = current[step]
    return False


def _known_keys(model: type[BaseModel], where: Path_) -> list[str]:
    """Return the keys allowed at `where`, following nested models as far as they can be told."""
    current: type[BaseModel] | None = model
    for part in where:
        if current is None or isinstance(part, int):
            continue
        field = next((f for n, f in current.model_fields.items() if part in (n, f.alias)), None)
        if field is not None:
            current = next(_models_in(field.annotation), None)
    if current is None:
        return []
    return [field.alias or key for key, field in current.model_fields.items()]


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _models_in(argument)


def write_text(path: str | Path, text: str) -> None:
    """Replace a file atomically: readers see the old text or the new, never half of it."""
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=target.parent, prefix=f".{target.name}.", delete=False
        ) as temporary:
            temporary.write(text)
            temporary.flush()
            os.fsync(temporary.fileno())
        Path(temporary.name).chmod(0o644)
        Path(temporary.name).replace(target)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None


def write_json(path: str | Path, data: Any) -> None:
    """Write JSON atomically, keys in their given order."""
    write_text(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n")
