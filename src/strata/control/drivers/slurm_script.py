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

ADDRESS: Final = "address"
"""The file of the part with rank 0 that says where its node is."""

MARGIN_S: Final = 15
"""Before a time limit, for the scripts themselves beside the grace."""

_BATCH: Final = """\
#!/bin/sh
# Written by strata. Runs the ranks of a part, and keeps what came of them in end.json.
cd {folder} || exit 1
{address}
mkdir began 2>/dev/null || exit 0  # it ran before: Slurm, or the scheduler, started it again
asked='' srun='' killer='' code=''
finish() {{
  [ -z "$killer" ] || kill "$killer"
  codes=$(cat exit.[0-9]* 2>/dev/null | paste -sd, -)
  printf '{{"exit_codes": [%s], "message": "%s", "at_s": %s}}\\n' "${{codes:-$code}}" "$1" "$(date +%s)" > end.new
  mv end.new end.json
  exit 0
}}
stop() {{
  interrupted=yes
  [ -z "$asked" ] || return
  asked=yes
  [ -n "$srun" ] || finish 'stopped before its ranks began'
  grace=$(sed -n 's/.*"grace_s": *\\([0-9.]*\\).*/\\1/p' stop.json 2>/dev/null)
  scancel --signal=TERM "$SLURM_JOB_ID"  # the ranks: without --batch not this script
  (
    trap 'kill "$nap"; exit' TERM
    sleep "${{grace:-{grace_s:g}}}" &
    nap=$!
    wait "$nap"
    exec scancel --signal=KILL "$SLURM_JOB_ID.0"
  ) &
  killer=$!
}}
trap stop TERM
[ ! -e stop.json ] || finish 'stopped before it began'
# Ranks give up on peers that do not come; other clusters may let theirs wait.
for other in {others}; do
  until [ -e "$other/began" ]; do
    [ ! -e "$other/end.json" ] || finish 'another part of it ended before all had begun'
    sleep 1
  done
done
srun --kill-on-bad-exit=1 --wait=0 --input=none --mpi=none sh ./rank.sh &
srun=$!
{wait}
finish ''
"""

_RANK: Final = """\
#!/bin/sh
# Written by strata. One rank of a part: its environment, its command, its exit code.
{shared}
case "$SLURM_PROCID" in
{own}
esac
{address}
[ ! -e {folder}/stop.json ] || exit 143  # asked before srun could pass it on
trap 'interrupted=yes' TERM  # the command gets it too; this waits for it
{command} &
rank=$! code=''
{wait}
echo "$code" > {folder}/.exit."$SLURM_PROCID"
mv {folder}/.exit."$SLURM_PROCID" {folder}/exit."$SLURM_PROCID"
case "$code" in 0|143) exit 0 ;; esac
sleep {after_failure_s}  # what the others have to write why; then srun ends them
exit "$code"
"""

_AFTER_FAILURE_S: Final = 10

_WAIT: Final = """\
while :; do
  interrupted=''
  wait "${child}"
  now=$?
  [ "$now" != 127 ] || [ -z "$code" ] || break  # waited for already, though the signal came at the same time
  code=$now
  [ -n "$interrupted" ] || break
done"""


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
        return _BATCH.format(
            folder=shlex.quote(str(self.folder)), address=address, grace_s=self.grace_s,
            wait=_WAIT.replace("{child}", "srun"), others=" ".join(shlex.quote(str(path)) for path in self.others),
        )  # fmt: skip

    def rank(self) -> str:
        """Return what srun starts once a rank."""
        first, *rest = self.environments
        shared = {key: value for key, value in first.items() if all(each.get(key) == value for each in rest)}
        own = (
            f"  {number}) {_exports({k: v for k, v in each.items() if k not in shared}) or ':'} ;;"
            for number, each in enumerate(self.environments)
        )
        address = ""
        if self.head is not None:
            address = f"MASTER_ADDR=$(cat {shlex.quote(str(self.head / ADDRESS))}); export MASTER_ADDR"
        return _RANK.format(
            shared=_exports(shared, separator="\n"), own="\n".join(own), address=address,
            command=shlex.join(self.command), folder=shlex.quote(str(self.folder)),
            wait=_WAIT.replace("{child}", "rank"), after_failure_s=_AFTER_FAILURE_S,
        )  # fmt: skip


def _exports(values: Mapping[str, str], *, separator: str = "; ") -> str:
    return separator.join(f"export {key}={shlex.quote(value)}" for key, value in values.items())
