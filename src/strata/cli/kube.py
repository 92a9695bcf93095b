"""`strata kube`: one table of what runs on a Kubernetes cluster, each imported only when it runs."""

from __future__ import annotations

from typing import Final

import click

from strata.cli.lazy import LazyGroup, Table

KUBE: Final[Table] = {
    "acu": ("strata.cli.kube_acu:acu", "What the cluster has, in use and free, of all vendors together."),
    "agent": ("strata.cli.kube_agent:agent", "Find this node's accelerators, and publish how well they are."),
    "controller": ("strata.cli.kube_controller:controller", "Route suspended jobs, and take broken nodes out."),
    "crds": ("strata.cli.kube_crds:crds", "Print the custom resource definitions, for kubectl apply."),
    "extender": ("strata.cli.kube_extender:extender", "Answer schedulers that ask which nodes a pod may go to."),
    "flavors": ("strata.cli.kube_flavors:flavors", "Print what Kueue counts quota by, for kubectl apply."),
    "library": ("strata.cli.kube_library:library", "Put the quota library into a folder of this node."),
    "webhook": ("strata.cli.kube_webhook:webhook", "Inject runtimes into pods, and hold jobs back until routed."),
    "why": ("strata.cli.kube_why:why", "Where a job or a pod goes, or why it waits: every node's reason."),
}


@click.group(cls=LazyGroup, table=KUBE)
def kube() -> None:
    """Place accelerator jobs on a Kubernetes cluster, whatever its vendors."""
