#!/usr/bin/env bash
# Says which Go there is, if it is 1.26 or newer; fails with the reason otherwise.
set -uo pipefail

found=$(go env GOVERSION 2>/dev/null) || { echo "go.sh: no Go here" >&2; exit 1; }
minor=${found#go1.}
minor=${minor%%.*}
if ! [ "$minor" -ge 26 ] 2>/dev/null; then
    echo "go.sh: $found is too old: 1.26 is needed" >&2
    exit 1
fi
echo "$found"
