"""Retired words stay retired: `tests/words/*.txt` name them, with what stands in their place.

`identifier Book -> ClusterCache`: no class, function, argument, variable, attribute or module has this name.
`phrase "is no batch" -> is not a valid batch size`: neither source nor docs hold this text.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "strata"
KEYS = {("training/plan/schema.py", "found")}
"""Fields that are keys of files and answers, which keep their names: (file, field)."""
LINE = re.compile(r'(?P<kind>identifier|phrase) (?:"(?P<quoted>[^"]+)"|(?P<plain>\S+)) -> (?P<instead>.+)')


class Retired(NamedTuple):
    kind: str
    word: str
    instead: str


def _retired() -> Iterator[Retired]:
    for file in sorted((ROOT / "tests" / "words").glob("*.txt")):
        for number, line in enumerate(file.read_text().splitlines(), start=1):
            if line and not line.startswith("#"):
                match = LINE.fullmatch(line)
                assert match, f'{file.name}:{number}: neither `identifier X -> Y` nor `phrase "X" -> Y`: {line}'
                yield Retired(match["kind"], match["quoted"] or match["plain"], match["instead"])


RETIRED = list(dict.fromkeys(_retired()))


@cache
def _identifiers() -> dict[str, str]:
    """Return every name that our sources bind or use on their own, with one place where it stands."""
    places: dict[str, str] = {}
    for file in sorted(SOURCES.rglob("*.py")):
        relative = file.relative_to(SOURCES)
        places.setdefault(file.stem, str(relative))
        for node in ast.walk(ast.parse(file.read_text())):
            for name in _names(node):
                if (str(relative), name) in KEYS:
                    continue
                places.setdefault(name.strip("_"), f"{relative}:{getattr(node, 'lineno', 1)}")
    return places


def _names(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name) | ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name
        case ast.ClassDef(name=name):
            yield name
        case ast.Attribute(attr=name, ctx=ast.Store()):
            yield name
        case ast.ImportFrom(names=names, module=module) if module and module.startswith("strata"):
            yield from (alias.name for alias in names)


@cache
def _texts() -> dict[str, str]:
    """Return what people read: our sources and pages, each file as one line."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    return {
        str(file.relative_to(ROOT)): re.sub(r"\s+", " ", file.read_text())
        for file in [*SOURCES.rglob("*.py"), *pages]
    }


@pytest.mark.parametrize(
    "word", [each for each in RETIRED if each.kind == "identifier"], ids=lambda each: each.word
)
def test_no_name_is_a_retired_word(word):
    place = _identifiers().get(word.word)
    assert place is None, f"{place}: {word.word} is retired; write {word.instead}"


@pytest.mark.parametrize("word", [each for each in RETIRED if each.kind == "phrase"], ids=lambda each: each.word)
def test_no_text_has_a_retired_phrase(word):
    files = [name for name, text in _texts().items() if word.word in text]
    assert not files, f"{', '.join(files)}: {word.word!r} is retired; write {word.instead}"


def test_the_lists_would_notice():
    assert _identifiers()["LazyGroup"].startswith("cli/")
    assert any("StrataError" in text for text in _texts().values())
