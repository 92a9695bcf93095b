#!/bin/sh
# Written by strata. Runs the ranks of a part, and keeps what came of them in end.json.
cd __FOLDER__ || exit 1
__ADDRESS__
mkdir began 2>/dev/null || exit 0  # it ran before: Slurm, or the scheduler, started it again
asked='' srun='' killer='' code=''
finish() {
  [ -z "$killer" ] || kill "$killer"
  codes=$(cat exit.[0-9]* 2>/dev/null | paste -sd, -)
  printf '{"exit_codes": [%s], "message": "%s", "at_s": %s}\n' "${codes:-$code}" "$1" "$(date +%s)" > end.new
  mv end.new end.json
  exit 0
}
stop() {
  interrupted=yes
  [ -z "$asked" ] || return
  asked=yes
  [ -n "$srun" ] || finish 'stopped before its ranks began'
  grace=$(sed -n 's/.*"grace_s": *\([0-9.]*\).*/\1/p' stop.json 2>/dev/null)
  scancel --signal=TERM "$SLURM_JOB_ID"  # the ranks: without --batch not this script
  (
    trap 'kill "$nap"; exit' TERM
    sleep "${grace:-__GRACE_S__}" &
    nap=$!
    wait "$nap"
    exec scancel --signal=KILL "$SLURM_JOB_ID.0"
  ) &
  killer=$!
}
trap stop TERM
[ ! -e stop.json ] || finish 'stopped before it began'
# Ranks give up on peers that do not come; other clusters may let theirs wait.
for other in __OTHERS__; do
  until [ -e "$other/began" ]; do
    [ ! -e "$other/end.json" ] || finish 'another part of it ended before all had begun'
    sleep 1
  done
done
srun --kill-on-bad-exit=1 --wait=0 --input=none --mpi=none sh ./rank.sh &
srun=$!
while :; do
  interrupted=''
  wait "$srun"
  now=$?
  [ "$now" != 127 ] || [ -z "$code" ] || break  # waited for already, though the signal came at the same time
  code=$now
  [ -n "$interrupted" ] || break
done
finish ''
