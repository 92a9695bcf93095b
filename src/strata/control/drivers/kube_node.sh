#!/bin/sh
# Written by strata. Runs the ranks of a node, and ends them where the record, or the kubelet, asks for it.
mkdir -p /tmp/strata || exit 1
pids='' failed=0 until=''
stop() {
  [ -z "$until" ] || return
  until=$(($(date +%s) + ${1:-__GRACE__}))
  kill -TERM $pids
}
trap 'stop' TERM
case "$JOB_COMPLETION_INDEX" in
__NODES__
esac
for rank in $ranks; do
  sh __FOLDER__/rank.sh "$rank" "$@" &
  pids="$pids $!"
done
while [ "$(ls /tmp/strata | wc -l)" -lt "$(echo $ranks | wc -w)" ]; do
  [ ! -e __FOLDER__/stop ] || stop "$(cat __FOLDER__/stop)"
  [ -z "$until" ] || [ "$(date +%s)" -lt "$until" ] || break
  # The others get 10 s to write why.
  for code in $(cat /tmp/strata/* 2>/dev/null); do
    case "$code" in 0|143) ;; *) failed=$((failed + 1)); break ;; esac
  done
  [ "$failed" -lt 10 ] || break
  alive=''
  for pid in $pids; do kill -0 "$pid" 2>/dev/null && alive=yes; done
  [ -n "$alive" ] || break
  sleep 1
done
worst=0
[ "$(ls /tmp/strata | wc -l)" -eq "$(echo $ranks | wc -w)" ] || worst=137
for code in $(cat /tmp/strata/* 2>/dev/null); do
  case "$code" in
    0) ;;
    143) [ "$worst" -ne 0 ] || worst=143 ;;
    *) worst=$code; break ;;
  esac
done
exit "$worst"
