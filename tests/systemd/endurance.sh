#!/bin/bash
# A unit under many requests, while its children and its supervisor die and are replaced.
set -u
source /mnt/environment
systemctl start "worker-orcd@cpu.socket" "worker-orcd@cpu"
"$CLIENT" --port "$PORT" --unit worker-orcd@cpu --requests "$REQUESTS" --log /mnt/log --report /mnt/report
echo "client: $?"
systemctl show worker-orcd@cpu --property=NRestarts
systemctl stop "worker-orcd@cpu.socket" "worker-orcd@cpu"
systemctl show worker-orcd@cpu --property=ExecMainStatus
