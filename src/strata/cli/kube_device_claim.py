"""`strata kube device-claim`: what a job asks as Kubernetes' device requests, for kube-scheduler to place."""

from __future__ import annotations

from collections.abc import Sequence

import click

from strata.cli.kube_source import look, source_options
from strata.cli.parameters import choice


@click.command("device-claim")
@click.option("-f", "--filename", "path", type=click.Path(), required=True, help="A job or a pod, one.")
@click.option("-o", "--output", type=choice("yaml", "json"), default="yaml", help="YAML documents, or one list.")
@source_options
def device_claim(
    path: str, output: str, snapshots: Sequence[str], kubeconfig: str | None, context: str | None
) -> None:
    """Print what the pods of a job ask as a ResourceClaimTemplate: cards in the order of the exchange.

    The cards are those that the cluster's ResourceSlices have, whoever publishes them; warnings name those that
    may not stand for what is asked. kube-scheduler then chooses, and strata counts what it allocated.

    \b
    strata kube device-claim -f job.yaml | kubectl apply -f -
    """
    from strata.cli.kube_manifests import print_objects
    from strata.cluster.api.jobs import read_job
    from strata.cluster.api.kinds import POD, RESOURCE_SLICE
    from strata.cluster.api.pod_claims import claim_of_pod, job_claim
    from strata.cluster.cache.gather import from_manifest
    from strata.cluster.controller.why_query import target_object, target_of
    from strata.cluster.dra.requests import claim_template, device_request
    from strata.fleet.discovery.resource_slices import slice_devices

    new = from_manifest(path)
    target, namespace = target_of(new, path, None)
    kind, obj = target_object(new, target, namespace)
    cache, objects = look(snapshots, kubeconfig, context)
    claim = claim_of_pod(obj) if kind == POD else job_claim(read_job(obj), {})
    request, refusals = device_request(claim, slice_devices(objects[RESOURCE_SLICE]), cache.profiles)
    for reason in refusals:
        click.echo(f"warning: left out: {reason}", err=True)
    print_objects(claim_template(target.partition("/")[2], namespace, request), output)
