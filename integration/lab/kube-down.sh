#!/bin/bash
# kube-down.sh DIR: ends what kube-up.sh started in DIR, clients before servers, and waits for it.
# An API server drains its connections for up to a minute; nothing here is worth that, so patience is 3 seconds.
set -u
for name in controllers scheduler api etcd; do
  file="$1/$name.pid"
  pid=$(cat "$file" 2>/dev/null) || continue
  # A process id may have been given to another since: only end what still is ours.
  if grep -qzE '(kube-apiserver|kube-scheduler|kube-controller-manager|etcd|kube)$' "/proc/$pid/cmdline" 2>/dev/null; then
    kill "$pid" 2>/dev/null
    for _ in $(seq 30); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    kill -9 "$pid" 2>/dev/null
  fi
  rm -f "$file"
done
exit 0
