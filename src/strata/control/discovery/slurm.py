"""A Slurm cluster: a domain for each type of its devices, with the partition to ask for them in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from strata.control.drivers.slurm_tools import SlurmNode, is_usable
from strata.decision import Trust
from strata.fleet.discovery.fleet_file import FoundDomain, Told, card_called

_TOOL = "sinfo"


def domains_of_slurm(name: str, nodes: Sequence[SlurmNode], conf: Path | None) -> list[FoundDomain]:
    """Return the domains of the cluster of a name. conf: its slurm.conf where it was given."""
    groups: dict[tuple[str, str], list[SlurmNode]] = {}
    for node in sorted(nodes, key=lambda node: node.name):
        types = {key for key in node.gres if key.startswith("gpu:")} or ({"gpu"} & node.gres.keys())
        for gres in sorted(types):
            if node.gres[gres]:
                groups.setdefault((node.partition, gres), []).append(node)
    made = []
    for (partition, gres), members in sorted(groups.items()):
        counts = [node.gres[gres] for node in members]
        _, _, kind = gres.partition(":")
        card = card_called(kind or "gpu", trust=Trust.ASSUMED, source=f"{_TOOL}, the administrator's name")
        usual = Counter(counts).most_common(1)[0][0]
        closed = sum(not is_usable(node) for node in members)
        left_out = f", none of {closed} nodes that take no jobs" if closed else ""
        keys = {
            "num_gpus": Told(sum(counts), Trust.MEASURED, f"{_TOOL}: {len(counts)} nodes"),
            "free_gpus": Told(
                sum(_free(node, gres) for node in members),
                Trust.MEASURED,
                f"{_TOOL}: not allocated to jobs{left_out}",
            ),
            "gpus_per_node": Told(usual, Trust.MEASURED, f"{_TOOL}: most nodes"),
        }
        if card.inline:
            keys["intra_bandwidth"] = Told("12GB/s", Trust.ASSUMED, "PCIe; nobody told")
        driver = {"kind": "slurm", "partition": partition, "gres": gres}
        driver |= {"conf": str(conf)} if conf is not None else {}
        made.append(FoundDomain("-".join(filter(None, (name, partition, kind))), card, keys, driver))
    return made


def _free(node: SlurmNode, gres: str) -> int:
    """Return how many devices of a node no job has; a use without a type may be of any."""
    used = node.gres_used.get(gres, node.gres_used.get("gpu", 0))
    return max(0, node.gres[gres] - used) if is_usable(node) and node.idle_cpus else 0
