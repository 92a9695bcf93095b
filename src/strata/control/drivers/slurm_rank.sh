#!/bin/sh
# Written by strata. One rank of a part: its environment, its command, its exit code.
__SHARED__
case "$SLURM_PROCID" in
__OWN__
esac
__ADDRESS__
[ ! -e __FOLDER__/stop.json ] || exit 143  # asked before srun could pass it on
trap 'interrupted=yes' TERM  # the command gets it too; this waits for it
__COMMAND__ &
rank=$! code=''
while :; do
  interrupted=''
  wait "$rank"
  now=$?
  [ "$now" != 127 ] || [ -z "$code" ] || break  # waited for already, though the signal came at the same time
  code=$now
  [ -n "$interrupted" ] || break
done
echo "$code" > __FOLDER__/.exit."$SLURM_PROCID"
mv __FOLDER__/.exit."$SLURM_PROCID" __FOLDER__/exit."$SLURM_PROCID"
case "$code" in 0|143) exit 0 ;; esac
sleep 10  # what the others have to write why; then srun ends them
exit "$code"
