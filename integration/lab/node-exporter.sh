#!/usr/bin/env bash
# Prints the path of Debian's prometheus-node-exporter (the last line of stdout; everything else goes to stderr). It is unpacked
# and not installed, for an installed one starts a daemon. Fails, with a reason, where it cannot be had.
set -euo pipefail

package=prometheus-node-exporter
say() { echo "node-exporter.sh: $*" >&2; }
if found=$(command -v "$package"); then
    echo "$found"
    exit 0
fi
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || { say "not there, and this is no Debian"; exit 1; }
cache="${OXALYST_CACHE:-$HOME/.cache/oxalyst}/$package"
program="$cache/usr/bin/$package"
if [ ! -x "$program" ]; then
    dir=$(mktemp -d)
    trap 'rm -rf "$dir"' EXIT
    fetch() { (cd "$dir" && apt-get download "$package" >&2); }
    fetch || { apt-get update >&2 && fetch; } || { say "$package cannot be downloaded"; exit 1; }
    mkdir -p "$cache"
    dpkg-deb -x "$dir/$package"*.deb "$cache"
fi
"$program" --version >/dev/null 2>&1 || { say "$program does not run here"; exit 1; }
echo "$program"
