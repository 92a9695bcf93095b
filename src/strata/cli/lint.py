"""`strata lint` and `strata schema`: what files must look like, and whether they do."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import click

from strata.cli.kinds import KINDS, kind_named, kind_of
from strata.cli.output import emit, output_option
from strata.errors import BadFile, Fault, UsageError
from strata.tables import Line, Shown, rows


@dataclass(frozen=True, slots=True)
class Checked:
    """One linted file. `kind` is empty where it could not be told. note: what was not checked."""

    file: str
    kind: str
    faults: tuple[Fault, ...]
    note: str = ""


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@output_option
def lint(files: tuple[str, ...], output: str) -> None:
    """Check files strictly: every fault of every file, with file:line:col.

    The kind of a file is its `kind:`; a file with `topology:` is a network file (docs/files.md). A training plan
    is checked against the fleet and job it was made from, as `plan train --given` does, where they are there.
    Exits 2 if any file has a fault.

    \b
    strata lint fleet.yaml job.yaml
    """
    checked = [_check(file) for file in files]
    faults = [fault for file in checked for fault in file.faults]
    data = [{**asdict(file), "ok": not file.faults} for file in checked]
    emit(data, output, _show_good(checked))
    if faults:
        hint = "`strata schema KIND` prints what a file may hold"
        raise BadFile(faults, hint=hint if any(fault.line for fault in faults) else None)


def _check(file: str) -> Checked:
    from strata.files import read_document

    kind = ""
    try:
        kind = kind_of(read_document(file))
        note = KINDS[kind].check(file)
    except BadFile as error:
        return Checked(file, kind, error.faults)
    except UsageError as error:
        return Checked(file, kind, (Fault(file, str(error).removeprefix(f"{file}: ")),))
    return Checked(file, kind, (), note)


def _show_good(checked: list[Checked]) -> Shown:
    for file in checked:
        if not file.faults:
            yield Line(f"{file.file}: ok ({file.kind})", is_whole=True)
            if file.note:
                yield f"  {file.note}"


@click.command()
@click.argument("kind", required=False)
@output_option
def schema(kind: str | None, output: str) -> None:
    """Print the JSON schema of a KIND of file; without KIND, list the kinds.

    \b
    strata schema
    strata schema Fleet > fleet.schema.json
    """
    if kind is None:
        emit({name: known.text for name, known in KINDS.items()}, output, _show_kinds())
        return
    from strata.files import json_schema

    data = json_schema(kind_named(kind).model())
    emit(data, "json" if output == "table" else output, ())


def _show_kinds() -> Shown:
    yield rows(("kind", "what it describes"), ((name, known.text) for name, known in KINDS.items()))
