#!/bin/bash
# The unit with an NVIDIA GPU: what it says of itself, what its child may do, and what it answers.
set -u
source /mnt/environment
unit=worker-orcd@cuda
health() { curl --silent --max-time 2 "localhost:$PORT/health"; }
for _ in $(seq 300); do
    [ "$(systemctl is-active "$unit")" = failed ] && break
    health | grep --quiet '"status":"healthy"' && break
    systemctl is-active --quiet "$unit" || systemctl start "$unit.socket" "$unit"
    sleep 0.1
done
echo "status: $(systemctl show "$unit" --property=StatusText --value)"
child=$(health | grep --only-matching '"child":{[^}]*' | head -1 | grep --only-matching '"pid":[0-9]*' | grep --only-matching '[0-9]*$')
echo "confined: $(grep --extended-regexp '^(CapBnd|NoNewPrivs|Seccomp):' "/proc/$child/status" | tr '\t\n' ' ;')"
execute() {
    curl --silent --no-buffer "localhost:$PORT/execute" --header 'Content-Type: application/json' --data \
        "{\"job_id\": \"$1\", \"prompt\": \"Once upon a time\", \"max_tokens\": 300, \"ignore_eos\": true, \"seed\": 7}"
}
execute calm > /mnt/calm
execute killed > /mnt/killed &
until grep --quiet '^id: 9$' /mnt/killed; do sleep 0.01; done
kill -KILL "$child"
wait
systemd-analyze security "$unit" --no-pager | tail -1
systemctl stop "$unit.socket" "$unit"
echo "stopped: $(systemctl show "$unit" --property=ExecMainStatus --value)"
