"""`strata kube crds`, `flavors` and `library`: what kubectl and the node agent's init container install."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from strata.cli.parameters import choice

_output_option: Final = click.option(
    "-o", "--output", type=choice("yaml", "json"), default="yaml", help="YAML documents, or one JSON list."
)


@click.command()
@click.option("--profiles", "with_profiles", is_flag=True, help="The bundled runtime profiles as well.")
@_output_option
def crds(with_profiles: bool, output: str) -> None:
    """Print the custom resource definitions of ComputeNode, RuntimeProfile and ComputeClaim.

    A runtime profile can only be applied once its definition is established: apply twice, or wait in between.

    \b
    strata kube crds | kubectl apply --server-side -f -
    """
    from strata.cluster.api.crd import manifests

    objects = [*manifests.crds(), *(manifests.profiles() if with_profiles else ())]
    print_objects(objects, output)


@click.command()
@_output_option
def flavors(output: str) -> None:
    """Print a Kueue ResourceFlavor for each kind of devices that the bundled runtime profiles are for.

    \b
    strata kube flavors | kubectl apply --server-side -f -
    """
    from strata.cluster.api.profile_schema import bundled_profiles
    from strata.cluster.kueue.flavors import flavors as flavors_of

    objects = flavors_of(bundled_profiles())
    print_objects(objects, output)


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


def print_objects(objects: Sequence[Any], output: str) -> None:
    """Print objects as kubectl takes them."""
    if output == "json":
        listed = {"apiVersion": "v1", "kind": "List", "items": objects}
        click.echo(json.dumps(listed, indent=2, ensure_ascii=False, allow_nan=False))
    else:
        import yaml

        click.echo(yaml.safe_dump_all(objects, sort_keys=False, allow_unicode=True), nl=False)
