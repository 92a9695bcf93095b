"""What `lint-imports` does not hold: no circles of files, no room too large, and a name that means one thing."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src"
LARGEST_ROOM_LINES = 17_100
LARGEST_EVALUATION_LINES = 16_330
LARGEST_CONTROL_LINES = 7_950
LARGEST_SOURCE_LINES = 103_900
"""Without evaluation/ and control/, which have their own. The aim of the sum is 62,000.
Lower these as the code becomes smaller."""


def _modules() -> dict[str, Path]:
    files = (file for file in SOURCES.rglob("*.py"))
    return {
        ".".join(file.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__"): file for file in files
    }


@cache
def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def _imports(file: Path, modules: dict[str, Path]) -> Iterator[str]:
    """Yield what a file imports of ours: lazy imports and those for type checkers, too."""
    for node in ast.walk(_parsed(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name if name in modules else node.module for name in names)


def test_no_files_import_each_other_in_a_circle():
    modules = _modules()
    graph = {name: set(_imports(file, modules)) - {name} for name, file in modules.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = error.args[1]
        raise AssertionError(f"a circle of imports: {' -> '.join(reversed(circle))}") from None


def test_no_room_is_too_large():
    lines: dict[str, int] = defaultdict(int)
    for file in SOURCES.rglob("*.py"):
        lines[file.relative_to(SOURCES / "strata").parts[0]] += len(file.read_text().splitlines())
    assert lines["evaluation"] > 0, "the rooms are counted somewhere else"
    assert lines.pop("evaluation") <= LARGEST_EVALUATION_LINES
    assert lines.pop("control") <= LARGEST_CONTROL_LINES
    assert {room: count for room, count in lines.items() if count > LARGEST_ROOM_LINES} == {}
    assert sum(lines.values()) <= LARGEST_SOURCE_LINES


CALLED_BY_OTHERS = {
    "markdown",  # docs/generate.py
    "read_runs",  # benchmarks/fit_kernels.py
    "GreedyLayerAllocator", "DynamicProgrammingLayerAllocator",  # names of design brief 003
    "__getattr__", "__dir__",  # the interpreter
}  # fmt: skip


def _mentions(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a file uses, in strings too: commands and kinds of files are loaded by name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            yield from node.value.replace(":", ".").split(".")


def _is_called_by_its_group(node: ast.AST) -> bool:
    decorators = map(ast.unparse, getattr(node, "decorator_list", ()))
    return any(".command(" in text and not text.startswith("click.") for text in decorators)


def test_every_function_and_class_of_a_module_has_a_caller():
    used = CALLED_BY_OTHERS | {name for file in _modules().values() for name in _mentions(_parsed(file))}
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    idle = {
        f"{name}.{node.name}"
        for name, file in _modules().items()
        for node in _parsed(file).body
        if isinstance(node, kinds) and node.name not in used and not _is_called_by_its_group(node)
    }
    assert idle == set(), "nothing in src calls this; what only tests need stands in tests"


def test_the_name_of_a_public_class_means_one_thing_in_a_room():
    places: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, file in _modules().items():
        for node in _parsed(file).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                room = ".".join(name.split(".")[:2])
                places[room, node.name].append(name)
    assert {key: where for key, where in places.items() if len(where) > 1} == {}
