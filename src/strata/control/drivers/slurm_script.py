"""The two shell scripts of a part under Slurm: the job's own, and what stands around each rank.

They need a shell and Slurm alone, nothing of strata on the nodes, and they stop a part without the scheduler: at
the time limit, or where it is down. POSIX sh.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from strata.control.drivers.launch import exports, filled

ADDRESS: Final = "address"
"""The file of the part with rank 0 that says where its node is."""

MARGIN_S: Final = 15
"""Before a time limit, for the scripts themselves beside the grace."""


@dataclass(frozen=True, slots=True)
class Scripts:
    """Of one part. head: the folder of the part with rank 0, where its address is known only once it runs.

    others: folders of the parts that must have begun before ranks start. grace_s: at the time limit.
    """

    folder: Path
    command: Sequence[str]
    environments: Sequence[Mapping[str, str]]
    grace_s: float
    others: Sequence[Path] = ()
    head: Path | None = None

    def batch(self) -> str:
        """Return the job's script."""
        address = ""
        if self.head == self.folder:
            address = (
                "where=$(hostname -I 2>/dev/null | cut -d ' ' -f 1)\n"
                f'echo "${{where:-$(hostname)}}" > {ADDRESS}.new && mv {ADDRESS}.new {ADDRESS}'
            )
        return filled(
            "slurm_batch", folder=shlex.quote(str(self.folder)), address=address, grace_s=f"{self.grace_s:g}",
            others=" ".join(shlex.quote(str(path)) for path in self.others),
        )  # fmt: skip

    def rank(self) -> str:
        """Return what srun starts once a rank."""
        first, *rest = self.environments
        shared = {key: value for key, value in first.items() if all(each.get(key) == value for each in rest)}
        own = (
            f"  {number}) {exports({k: v for k, v in each.items() if k not in shared}) or ':'} ;;"
            for number, each in enumerate(self.environments)
        )
        address = ""
        if self.head is not None:
            address = f"MASTER_ADDR=$(cat {shlex.quote(str(self.head / ADDRESS))}); export MASTER_ADDR"
        return filled(
            "slurm_rank", shared=exports(shared), own="\n".join(own), address=address,
            command=shlex.join(self.command), folder=shlex.quote(str(self.folder)),
        )  # fmt: skip
