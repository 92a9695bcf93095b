"""`strata report`: plans and fleets as one HTML file with pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from strata.cli.parameters import PATH, OutputFile


@click.command()
@click.argument("files", nargs=-1, required=True, type=PATH)
@click.option("-o", "--output", type=OutputFile(), default=Path("report.html"), help="The file to write.")
@click.option("--title", default="strata", help="Its heading.")
def report(files: Sequence[Path], output: Path, title: str) -> None:
    """Write FILES, plans, fleets and host reports, as one HTML page with pictures that needs nothing else.

    \b
    strata plan train aws10 llama-3.1-8b --save plan.json
    strata host report examples/host/trace.txt.gz -o json > host.json
    strata report plan.json fleet.yaml host.json -o report.html
    """
    from strata.files import write_text
    from strata.web.report import report as written

    write_text(output, written(files, title=title))
    click.echo(f"wrote {output}", err=True)
