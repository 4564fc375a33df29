#!/bin/bash
# Runs a script under a systemd of its own, which is PID 1 of namespaces of its own and can write nowhere but to
# a directory that it is given. Needs root. To be called by
#
#     unshare --fork --kill-child --pid --mount --uts --ipc --mount-proc boot.sh UNIT SCRIPT DIRECTORY
set -eu
unit=$1 script=$2 directory=$3
mount --make-rprivate /
mount --bind "$directory" /mnt
mount -o remount,ro,bind /
mount -t tmpfs tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs tmpfs /var
mkdir -p /var/lib /var/tmp /var/log "/run/systemd/system/$(basename "$unit").d"
cp "$unit" "${unit%.service}.socket" /run/systemd/system/
# What differs on this machine.
cp /mnt/override.conf "/run/systemd/system/$(basename "$unit").d/"
socket=/run/systemd/system/$(basename "$unit" .service).socket.d
mkdir "$socket"
cp /mnt/socket.conf "$socket/"
cp "$script" /run/script.sh
cat > /run/systemd/system/script.service <<END
[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
ExecStart=/bin/bash /run/script.sh
StandardOutput=file:/mnt/said
StandardError=file:/mnt/errors
ExecStopPost=/bin/systemctl --force exit 0
END
export container=unshare
exec /lib/systemd/systemd --system --unit=script.service --show-status=no
