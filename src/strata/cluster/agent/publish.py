"""Making the API server know a fingerprint: the ComputeNode's status, by server-side apply."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from strata import __version__
from strata.cluster.api.client import Api
from strata.cluster.api.crd.compute_node import compute_node
from strata.cluster.api.crd.fields import LONGEST, MOST_NOTES
from strata.cluster.api.errors import ApiFailed
from strata.cluster.api.kinds import COMPUTE_NODE, meta, moment
from strata.cluster.api.older_definitions import FittingApply
from strata.fleet.fingerprint import Fingerprint

MANAGER: Final = "strata-agent"


class Publisher:
    """Applies a node's status, and the node itself where it is not there. For one thread.

    Raises ApiFailed, and BadFile for a figure that is none. Fields that the server's definition of the kind lacks
    are left out; from the next time on a note says which.
    """

    def __init__(
        self, api: Api, *, wall_clock: Callable[[], float] = time.time, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._apply, self._wall_clock = FittingApply(api, clock=clock), wall_clock

    def __call__(self, fingerprint: Fingerprint) -> str:
        """Publish a fingerprint; return the uid of its ComputeNode."""
        if omitted := self._apply.omitted.get(COMPUTE_NODE):
            fields = ", ".join(sorted(omitted))[: LONGEST // 2]
            note = f"the API server's ComputeNode lacks {fields}: apply the definitions of this version"
            fingerprint = replace(fingerprint, notes=(*fingerprint.notes[: MOST_NOTES - 1], note))
        whole = compute_node(fingerprint, at=moment(self._wall_clock(), "milliseconds"), version=__version__)
        try:
            applied = self._apply(COMPUTE_NODE, whole, subresource="status", manager=MANAGER)
        except ApiFailed as error:
            if error.status != 404:
                raise
            # A status needs its object; where the kind itself is not there, this is refused the same way.
            self._apply(COMPUTE_NODE, {key: whole[key] for key in whole if key != "status"}, manager=MANAGER)
            applied = self._apply(COMPUTE_NODE, whole, subresource="status", manager=MANAGER)
        return str(meta(applied).get("uid") or "")
