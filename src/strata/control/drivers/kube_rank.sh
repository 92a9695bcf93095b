#!/bin/sh
# Written by strata. One rank: its environment, its command, its exit code.
rank=$1
shift
. __FOLDER__/shared
. "__FOLDER__/rank-$rank"
trap 'interrupted=yes' TERM
"$@" &
child=$! code=''
trap 'interrupted=yes; kill -TERM "$child" 2>/dev/null' TERM
while :; do
  interrupted=''
  wait "$child"
  now=$?
  [ "$now" != 127 ] || [ -z "$code" ] || break
  code=$now
  [ -n "$interrupted" ] || break
done
echo "$code" > "/tmp/.strata-$rank"
mv "/tmp/.strata-$rank" "/tmp/strata/$rank"
