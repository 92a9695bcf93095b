"""`strata kube crds`: the definitions of our API group, for kubectl."""

from __future__ import annotations

import json

import click


@click.command()
@click.option("--profiles", "with_profiles", is_flag=True, help="The bundled runtime profiles as well.")
@click.option(
    "-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", help="YAML documents, or one JSON list."
)
def crds(with_profiles: bool, output: str) -> None:
    """Print the custom resource definitions of ComputeNode, RuntimeProfile and ComputeClaim.

    A runtime profile can only be applied once its definition is established: apply twice, or wait in between.

    \b
    strata kube crds | kubectl apply --server-side -f -
    """
    from strata.cluster.api.crd import manifests

    objects = [*manifests.crds(), *(manifests.profiles() if with_profiles else ())]
    if output == "json":
        listed = {"apiVersion": "v1", "kind": "List", "items": objects}
        click.echo(json.dumps(listed, indent=2, ensure_ascii=False, allow_nan=False))
    else:
        import yaml

        click.echo(yaml.safe_dump_all(objects, sort_keys=False, allow_unicode=True), nl=False)
