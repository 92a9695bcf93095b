"""A Slurm cluster: a domain for each type of its devices, with the partition to ask for them in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from strata.control.discovery.fleet_file import FoundDomain, Told, card_called
from strata.control.drivers.slurm_tools import SlurmNode
from strata.decision import Trust

_TOOL = "sinfo"


def domains_of_slurm(name: str, nodes: Sequence[SlurmNode], conf: Path | None) -> list[FoundDomain]:
    """Return the domains of the cluster of a name. conf: its slurm.conf where it was given."""
    groups: dict[tuple[str, str], list[int]] = {}
    for node in sorted(nodes, key=lambda node: node.name):
        types = {key for key in node.gres if key.startswith("gpu:")} or ({"gpu"} & node.gres.keys())
        for gres in sorted(types):
            if node.gres[gres]:
                groups.setdefault((node.partition, gres), []).append(node.gres[gres])
    made = []
    for (partition, gres), counts in sorted(groups.items()):
        _, _, kind = gres.partition(":")
        card = card_called(kind or "gpu", trust=Trust.ASSUMED, source=f"{_TOOL}, the administrator's name")
        usual = Counter(counts).most_common(1)[0][0]
        keys = {
            "num_gpus": Told(sum(counts), Trust.MEASURED, f"{_TOOL}: {len(counts)} nodes"),
            "gpus_per_node": Told(usual, Trust.MEASURED, f"{_TOOL}: most nodes"),
        }
        if card.inline:
            keys["intra_bandwidth"] = Told("12GB/s", Trust.ASSUMED, "PCIe; nobody told")
        driver = {"kind": "slurm", "partition": partition, "gres": gres}
        driver |= {"conf": str(conf)} if conf is not None else {}
        made.append(FoundDomain("-".join(filter(None, (name, partition, kind))), card, keys, driver))
    return made
