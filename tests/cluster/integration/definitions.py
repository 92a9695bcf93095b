"""All of our kinds on a real API server, which takes one definition after the other, tenths of a second apart."""

from __future__ import annotations

from strata.cluster.api.crd.manifests import crds
from strata.cluster.api.errors import ApiFailed
from strata.cluster.api.kinds import COMPUTE_CLAIM, COMPUTE_NODE, CRD, RUNTIME_PROFILE
from tests.support.real_processes import until

OURS = (COMPUTE_NODE, RUNTIME_PROFILE, COMPUTE_CLAIM)


def define(api) -> None:
    """Install our definitions; return once each kind is listed and among those that the server says it has."""
    for crd in crds():
        api.apply(CRD, crd)
    for kind in OURS:
        until(lambda kind=kind: is_served(api, kind), lambda kind=kind: kind.plural)


def is_served(api, kind) -> bool:
    """Whether a kind can be listed, and who may not list it is told so (`serves`)."""
    try:
        api.list(kind)
    except ApiFailed:
        return False
    return api.serves(kind)
