"""Writes the generated pages of docs/. With --check it writes nothing, names stale pages and exits 1."""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

import strata.errors
from strata.cli.kinds import KINDS
from strata.cli.main import cli
from strata.errors import INTERRUPTED, StrataError
from strata.evaluation.kpi.page import markdown
from strata.files import FileModel, json_schema
from strata.fleet.matrix_file import MatrixNetworkFile
from strata.fleet.schema import SeedNetworkFile
from strata.reasons import REASONS

FOLDER = Path(__file__).parent
SOURCES = FOLDER.parent / "src" / "strata"
WIDTH = 80


def reasons() -> str:
    """Return the page of reason tokens, in the order of `REASONS`."""
    lines = ["Why something was or was not chosen. The token is the same in tables, JSON, events and metrics.", ""]
    for token, meaning in REASONS.items():
        lines += [
            f"## `{token}`",
            "",
            f"> {meaning.sentence}",
            "",
            meaning.means,
            "",
            f"*What helps:* {meaning.remedy}",
            "",
        ]
    return _page("Reasons", lines)


def exit_codes() -> str:
    """Return the page of exit codes: those of every error of the package, of success and of an interrupt."""
    rows = ["| code | error | meaning |", "|---|---|---|", "| 0 | | the command did what it was asked |"]
    meanings = [(code, f"`{name}`", text) for name, code, text in every_error()]
    meanings.append((INTERRUPTED, "", "interrupted (Ctrl-C); what was computed until then is printed"))
    rows += [f"| {code} | {name} | {text} |" for code, name, text in sorted(meanings, key=lambda row: row[0])]
    text = [
        "Errors are printed to stderr as `error: ...`, with at most one `try: ...` line; with `-o json` as JSON.",
        "stdout has only data.",
        "`strata run` and `strata host record -- COMMAND` exit with the code of the command they ran.",
    ]
    return _page("Exit codes", [*text, "", *rows])


def every_error() -> list[tuple[str, int, str]]:
    """Return name, exit code and meaning of the errors a user may see: all classes below StrataError.

    Read from the source, so that the page is the same where optional libraries are not installed.
    """
    sources = [path.read_text(encoding="utf-8") for path in sorted(Path(strata.__path__[0]).rglob("*.py"))]
    waiting = [node for text in sources for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
    codes = {StrataError.__name__: StrataError.exit_code}
    errors = [(StrataError.__name__, StrataError.exit_code, inspect.getdoc(StrataError) or "")]
    while True:
        derived = [(node, base.id) for node in waiting for base in node.bases
                   if isinstance(base, ast.Name) and base.id in codes]  # fmt: skip
        if not derived:
            rows = [(name, code, text.partition("\n")[0]) for name, code, text in errors]
            return sorted(rows, key=lambda row: (row[1], not hasattr(strata.errors, row[0]), row[0]))
        for node, base in derived:
            own = [line.value for line in node.body if isinstance(line, ast.Assign) and _sets_exit_code(line)]
            codes[node.name] = ast.literal_eval(own[0]) if own else codes[base]
            errors.append((node.name, codes[node.name], ast.get_docstring(node) or ""))
            waiting.remove(node)


def _sets_exit_code(line: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "exit_code" for target in line.targets)


def schemas() -> str:
    """Return the page of file kinds: a table of keys for each mapping a file may hold."""
    lines = [
        "`strata schema KIND` prints the same as JSON schema; `strata lint FILE` checks a file.",
        "A quantity is text with its unit; its default is shown in SI units. Keys in **bold** are required.",
        "",
    ]
    for name, kind in KINDS.items():
        lines += [f"## {name}", "", kind.text, "", *_tables(kind.model())]
    lines += [
        "## Network file of seed 001",
        "",
        "Has no `kind:`; read as a Fleet.",
        "",
        *_tables(SeedNetworkFile),
        "## Matrices of seed 001",
        "",
        "Has no `kind:`; read as a Fleet.",
        "",
        *_tables(MatrixNetworkFile),
    ]
    return _page("Files", lines)


def commands() -> str:
    """Return the page of `--help` texts, groups before their commands."""
    lines = []
    for path, text in _help(
        cli, click.Context(cli, info_name="strata", terminal_width=WIDTH, **cli.context_settings)
    ):
        lines += [f"## {path}", "", "```", text.rstrip(), "```", ""]
    return _page("Command line", lines)


def kpis() -> str:
    """Return the page of the last KPI table that was kept in kpi.json (`strata kpi -o json`)."""
    answer = json.loads((FOLDER / "kpi.json").read_text(encoding="utf-8"))
    later = (
        "Since then `strata kpi --row NAME -o json` printed every row anew. allocation_error, load_stability, "
        "network_degradation and utilization_improvement are of the policy that was bundled until 2026-11-28; "
        "inter_domain_latency_s is of a quick run, six fleets of each size; pareto_coverage is from before "
        "candidates knew what selective recomputation keeps (`--quick`, four fleets: 0.716 before, 0.775 after)."
    )
    return _page("The target KPIs, measured", [later, "", *markdown(answer)])


def glossary() -> str:
    """Return the page of terms: public classes, room by room, with their first sentences."""
    lines = ["What the code calls things, room by room; the first sentence of each class says what it is.", ""]
    for room in ("fleet", "workload", "simulate", "training", "learning", "serving", "cluster", "slicing", "host"):
        folder = SOURCES / room
        terms = sorted(_terms(folder))
        if terms:
            lines += [f"## {room}", "", "| term | what it is | where |", "|---|---|---|", *_term_rows(terms), ""]
    return _page("Glossary", lines)


PAGES: Mapping[str, Callable[[], str]] = {
    "reasons.md": reasons,
    "exit-codes.md": exit_codes,
    "schemas.md": schemas,
    "cli.md": commands,
    "kpi.md": kpis,
    "glossary.md": glossary,
}


def _terms(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (class, first sentence, file) of the public classes that say what they are; errors have a page."""
    for file in sorted(folder.rglob("*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            meaning = ast.get_docstring(node) if isinstance(node, ast.ClassDef) else None
            if isinstance(node, ast.ClassDef) and meaning and not node.name.startswith("_"):
                sentence = " ".join(meaning.partition("\n\n")[0].split()).replace("|", "\\|")
                yield node.name, sentence, str(file.relative_to(SOURCES))


def _term_rows(terms: list[tuple[str, str, str]]) -> Iterator[str]:
    yield from (f"| `{name}` | {sentence} | {file} |" for name, sentence, file in terms)


def _page(title: str, lines: list[str]) -> str:
    note = "<!-- Written by docs/generate.py (`make docs`); edits here are lost. -->"
    return "\n".join([f"# {title}", "", note, "", *lines]).rstrip() + "\n"


def _help(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _help(inner, click.Context(inner, parent=context, info_name=name, terminal_width=WIDTH))


def _tables(model: type[FileModel]) -> Iterator[str]:
    schema = json_schema(model)
    definitions = schema.get("$defs", {})
    todo = [(model.__name__, schema)]
    seen = {model.__name__}
    for name, mapping in todo:  # grows as mappings name others: the root first, then in order of mention
        yield from (
            f"### {name}",
            "",
            mapping.get("description", ""),
            "",
            "| key | value | default |",
            "|---|---|---|",
        )
        for key, value in mapping["properties"].items():
            shown = f"**{key}**" if key in mapping.get("required", ()) else key
            default = value.get("default")
            default = "" if default is None or isinstance(default, dict) else f"`{json.dumps(default)}`"
            yield f"| {shown} | {_value(value, definitions)} | {default} |"
            for mentioned in _mentioned(value):
                if mentioned not in seen and "properties" in definitions[mentioned]:
                    seen.add(mentioned)
                    todo.append((mentioned, definitions[mentioned]))
        yield ""


def _mentioned(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"].rpartition("/")[2]
        for value in schema.values():
            yield from _mentioned(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _mentioned(value)


def _value(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """Return in words what may stand at a key."""

    def words(inner: Mapping[str, Any]) -> str:
        return _value(inner, definitions)

    match schema:
        case {"$ref": reference}:
            name = reference.rpartition("/")[2]
            return words(definitions[name]) if "enum" in definitions[name] else f"[{name}](#{name.lower()})"
        case {"description": quantity, "anyOf": _}:
            return str(quantity)
        case {"anyOf": members} | {"oneOf": members}:
            return " or ".join(dict.fromkeys(words(m) for m in members if m.get("type") != "null"))
        case {"const": value}:
            return f"`{value}`"
        case {"enum": values}:
            return ", ".join(f"`{value}`" for value in values)
        case {"prefixItems": items}:
            return f"list: {', '.join(map(words, items))}"
        case {"type": "array", "items": items}:
            return f"list of {words(items)}"
        case {"patternProperties": dict(by_pattern)}:
            return f"mapping of names to {' or '.join(map(words, by_pattern.values()))}"
        case {"additionalProperties": dict(inner)}:
            return f"mapping of names to {words(inner)}"
        case {"type": kind}:
            return {"string": "text", "integer": "whole number", "object": "mapping"}.get(kind, str(kind))
    return "anything"


def main(arguments: list[str], folder: Path = FOLDER) -> int:
    """Write or check all pages of a folder and return the exit code."""
    stale = []
    for name, page in PAGES.items():
        path, text = folder / name, page()
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
    if stale:
        click.echo(f"stale: {', '.join(f'docs/{name}' for name in stale)}\ntry: make docs", err=True)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
