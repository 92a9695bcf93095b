"""`strata kube flavors`: what Kueue counts quota by, for kubectl."""

from __future__ import annotations

import json

import click


@click.command()
@click.option(
    "-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", help="YAML documents, or one JSON list."
)
def flavors(output: str) -> None:
    """Print a Kueue ResourceFlavor for each kind of devices that the bundled runtime profiles are for.

    \b
    strata kube flavors | kubectl apply --server-side -f -
    """
    from strata.cluster.api.profile_schema import bundled_profiles
    from strata.cluster.kueue.flavors import flavors as flavors_of

    objects = flavors_of(bundled_profiles())
    if output == "json":
        click.echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}, indent=2))
    else:
        import yaml

        click.echo(yaml.safe_dump_all(objects, sort_keys=False), nl=False)
