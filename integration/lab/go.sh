#!/usr/bin/env bash
# go.sh [MINOR]: says which Go there is, if it is 1.MINOR (default 26) or newer; fails with the reason otherwise.
set -uo pipefail

wanted=${1:-26}
found=$(go env GOVERSION 2>/dev/null) || { echo "go.sh: no Go here" >&2; exit 1; }
minor=${found#go1.}
minor=${minor%%.*}
if ! [ "$minor" -ge "$wanted" ] 2>/dev/null; then
    echo "go.sh: $found is too old: 1.$wanted is needed" >&2
    exit 1
fi
echo "$found"
