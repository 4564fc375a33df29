#!/bin/bash
# The life of a unit: each line that this prints is a moment and what systemd knows then.
set -u
unit=worker-orcd@cpu
show() { systemctl show "$unit" --property="$1" --value; }
say() { echo "$1: active=$(show ActiveState) restarts=$(show NRestarts) result=$(show Result) status=$(show StatusText)"; }
health() { curl --silent --max-time 2 "localhost:$PORT/health"; }
child() { health | grep --only-matching '"child":{[^}]*' | head -1 | grep --only-matching '"pid":[0-9]*' | grep --only-matching '[0-9]*$'; }
until_true() { for _ in $(seq 150); do eval "$1" && return; sleep 0.1; done; echo "in vain: $1"; }
source /mnt/environment

systemctl start "$unit.socket" "$unit"
[ -n "$(child)" ] && say started
until_true 'show StatusText | grep --quiet ^serving'
say served
# The child, which reads the model's file.
echo "confined: $(grep --extended-regexp '^(CapBnd|NoNewPrivs|Seccomp):' "/proc/$(child)/status" | tr '\t\n' ' ;')" \
    "$(grep --count . "/proc/$(child)/uid_map") users"

before=$(child)
kill -KILL "$before"
until_true '[ -n "$(child)" ] && [ "$(child)" != "$before" ]'
until_true 'show StatusText | grep --quiet "1 restarts.*killed by signal 9"'
say child-killed

kill -STOP "$(show MainPID)"
until_true '[ "$(show NRestarts)" = 1 ] && [ "$(show ActiveState)" = active ]'
say supervisor-stopped

# What a stream says that nobody disturbs.
execute() {
    curl --silent --no-buffer "localhost:$PORT/execute" --header 'Content-Type: application/json' --data \
        "{\"job_id\": \"$1\", \"prompt\": \"Once upon a time\", \"max_tokens\": 200, \"ignore_eos\": true, \"seed\": 7}"
}
until_true 'show StatusText | grep --quiet ^serving'
execute calm > /mnt/calm

# A client that comes when the supervisor is dead waits for the next one, and one whose stream broke off gets the
# rest of it.
execute killed > /mnt/killed &
until_true 'grep --quiet "^id: 9$" /mnt/killed'
kill -KILL "$(show MainPID)"
curl --silent --max-time 20 --output /mnt/livez --write-out 'between: %{http_code}\n' "localhost:$PORT/livez"
wait
has=$(grep --count '^event: token' /mnt/killed)
curl --silent --no-buffer --max-time 60 "localhost:$PORT/execute/killed?from=$has" > /mnt/killed-rest
until_true '[ "$(show NRestarts)" = 2 ] && [ "$(show ActiveState)" = active ]'
say supervisor-killed
echo "stored: $(show NFileDescriptorStore)"

# Another program takes over while a stream runs, and neither systemd nor the stream notices.
main=$(show MainPID)
execute upgraded > /mnt/upgraded &
until_true 'grep --quiet "^id: 9$" /mnt/upgraded'
systemctl kill --kill-who=main --signal=USR2 "$unit"
wait
[ "$(show MainPID)" = "$main" ] && say upgraded

# What an upgraded supervisor would leave is what is stored, and nothing older.
until_true 'show StatusText | grep --quiet ^serving'
execute again > /mnt/again &
until_true 'grep --quiet "^id: 9$" /mnt/again'
kill -KILL "$main"
wait
has=$(grep --count '^event: token' /mnt/again)
until_true '[ "$(show NRestarts)" = 3 ] && [ "$(show ActiveState)" = active ]'
curl --silent --no-buffer --max-time 60 "localhost:$PORT/execute/again?from=$has" > /mnt/again-rest
say upgraded-and-killed
echo "stored then: $(show NFileDescriptorStore)"

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
