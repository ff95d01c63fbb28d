#!/usr/bin/env bash
# reference-runtime.sh 0.9|0.12: builds the reference runtime (integration/reference-runtime) on that line of the NRI library
# and prints its path (the last line of stdout; everything else goes to stderr). Needs Go 1.24; the binary is kept below
# ${OXALYST_CACHE:-$HOME/.cache/oxalyst} by what it was made of.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
source_dir="$here/../reference-runtime"
case "${1:-}" in
0.9) arguments=(-modfile nri-0.9.mod -tags state_change) ;;
0.12) arguments=() ;;
*)
    echo "usage: reference-runtime.sh 0.9|0.12" >&2
    exit 2
    ;;
esac
go=$("$here/go.sh" 24)
cache="${OXALYST_CACHE:-$HOME/.cache/oxalyst}/reference-runtime"
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
sum=$( (cd "$source_dir" && cat ./*.go ./*.mod ./*.sum && echo "$go" "${arguments[@]}") | sha256sum | cut -c 1-16)
binary="$cache/nri-$1-$sum"
if [ ! -x "$binary" ]; then
    rm -f "$cache/nri-$1"-*
    (cd "$source_dir" && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' "${arguments[@]}" -o "$binary.part" . >&2)
    mv "$binary.part" "$binary"
fi
echo "$binary"
