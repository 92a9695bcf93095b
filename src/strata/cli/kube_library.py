"""`strata kube library`: the quota library where pods with fractions of devices mount it from."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def library(folder: Path) -> None:
    """Put the quota library into FOLDER, which is made if need be.

    The node agent's init container runs it with the host's /usr/local/strata. A library that is there is replaced
    whole: processes that have the old one keep it.

    \b
    strata kube library /usr/local/strata
    """
    from strata.slicing.build import install

    click.echo(f"the quota library is {install(folder)}", err=True)
