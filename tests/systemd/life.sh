#!/bin/bash
# The life of a unit: each line that this prints is a moment and what systemd knows then.
set -u
unit=worker-orcd@cpu
show() { systemctl show "$unit" --property="$1" --value; }
say() { echo "$1: active=$(show ActiveState) restarts=$(show NRestarts) result=$(show Result) status=$(show StatusText)"; }
health() { curl --silent --max-time 2 "localhost:$PORT/health"; }
child() { health | grep --only-matching '"generation":[0-9]*,[^}]*"pid":[0-9]*' | head -1 | grep --only-matching '[0-9]*$'; }
until_true() { for _ in $(seq 150); do eval "$1" && return; sleep 0.1; done; echo "in vain: $1"; }
source /mnt/environment

systemctl start "$unit.socket" "$unit"
[ -n "$(child)" ] && say started
until_true 'show StatusText | grep --quiet ^serving'
say served

before=$(child)
kill -KILL "$before"
until_true '[ -n "$(child)" ] && [ "$(child)" != "$before" ]'
until_true 'show StatusText | grep --quiet "1 restarts"'
say child-killed

kill -STOP "$(show MainPID)"
until_true '[ "$(show NRestarts)" = 1 ] && [ "$(show ActiveState)" = active ]'
say supervisor-stopped

# A client that comes now waits for the next supervisor.
kill -KILL "$(show MainPID)"
curl --silent --max-time 20 --output /mnt/livez --write-out 'between: %{http_code}\n' "localhost:$PORT/livez"
until_true '[ "$(show NRestarts)" = 2 ] && [ "$(show ActiveState)" = active ]'
say supervisor-killed

curl --silent --no-buffer "localhost:$PORT/execute" --header 'Content-Type: application/json' --data \
    '{"job_id": "a", "prompt": "Once", "max_tokens": 40, "ignore_eos": true}' > /mnt/stream &
until_true 'grep --quiet token /mnt/stream'
systemctl stop "$unit.socket" "$unit"
wait
say stopped
systemctl show "$unit" --property=ExecMainStatus --value
# Whoever is left is of systemd, or this script.
ps -e -o comm= | grep worker
systemd-analyze security "$unit" --no-pager | tail -1
