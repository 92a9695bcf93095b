"""As much of Kueue's kinds as a dispatcher meets, in our own words: what is checked of a Workload's status.

Everything else is taken as it comes. Their API: kubernetes-sigs/kueue apis/kueue/v1beta2, read at ff69552e (0.19).
"""

from __future__ import annotations

from strata.cluster.api.kinds import ADMISSION_CHECK, CRD, MULTIKUEUE_CLUSTER, MULTIKUEUE_CONFIG, WORKLOAD
from tests.support.real_processes import until

ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
BY_TYPE = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
STATUS = {
    **ANYTHING,
    "properties": {
        "clusterName": {"type": "string", "maxLength": 256},
        "nominatedClusterNames": {
            "type": "array",
            "maxItems": 20,
            "x-kubernetes-list-type": "atomic",
            "items": {"type": "string", "maxLength": 256},
        },
        "conditions": {
            "type": "array",
            "maxItems": 16,
            **BY_TYPE,
            "items": {**ANYTHING, "required": ["type"], "properties": {"type": {"type": "string"}}},
        },
    },
    "x-kubernetes-validations": [
        {
            "rule": "!(has(self.clusterName) && has(self.nominatedClusterNames) && "
            "self.nominatedClusterNames.size() > 0)",
            "message": "clusterName and nominatedClusterNames are mutually exclusive",
        },
        {
            "rule": "!has(oldSelf.clusterName) || !has(self.clusterName) || "
            "self.clusterName == oldSelf.clusterName",
            "message": "clusterName is immutable once set",
        },
    ],
}


def define_multikueue(api) -> None:
    """Install the kinds, and wait until each is served."""
    for kind in (WORKLOAD, ADMISSION_CHECK, MULTIKUEUE_CLUSTER, MULTIKUEUE_CONFIG):
        status = STATUS if kind == WORKLOAD else ANYTHING
        version = {
            "name": kind.version,
            "served": True,
            "storage": True,
            "schema": {"openAPIV3Schema": {**ANYTHING, "properties": {"status": status}}},
            "subresources": {"status": {}},
        }
        api.apply(
            CRD,
            {
                "apiVersion": CRD.api_version,
                "kind": CRD.kind,
                "metadata": {"name": f"{kind.plural}.{kind.group}"},
                "spec": {
                    "group": kind.group,
                    "names": {"kind": kind.kind, "plural": kind.plural, "singular": kind.kind.lower()},
                    "scope": "Namespaced" if kind.is_namespaced else "Cluster",
                    "versions": [version],
                },
            },
        )
        until(lambda kind=kind: api.serves(kind), lambda kind=kind: kind.plural)
