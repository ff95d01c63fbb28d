#!/usr/bin/env bash
# Finds or builds CRI-O and prints the folder that holds `crio`, `copyimg` and `pinns` (the last line of stdout; everything
# else goes to stderr).
#
# Taken from, in this order: $OXALYST_LAB_BIN (each program as it is or as NAME.xz), the cache below
# ${OXALYST_CACHE:-$HOME/.cache/oxalyst}, a build of the Go module where Go 1.26 or newer and a C compiler are there (seven
# minutes of CPU, 70 MB; modules come through Go's own proxy). runc, conmon and busybox are Debian's.
set -euo pipefail

version=1.34.0
say() { echo "crio.sh: $*" >&2; }
fail() { say "$*"; exit 1; }
here=$(cd "$(dirname "$0")" && pwd)

[ "$(uname -s)" = Linux ] || fail "CRI-O needs Linux"
cache="${OXALYST_CACHE:-$HOME/.cache/oxalyst}"
bin="$cache/crio-$version/bin"
mkdir -p "$bin"
# One at a time: two suites that start together would unpack into the same folder.
exec 9>"$cache/crio.lock"
flock 9

"$here/packages.sh" runc:/usr/sbin/runc conmon:/usr/bin/conmon busybox-static:/bin/busybox xz-utils:/usr/bin/xz \
    || fail "not every package that CRI-O needs is here"

complete() {
    local name
    for name in crio copyimg pinns; do [ -x "$bin/$name" ] || return 1; done
    "$bin/crio" --version >/dev/null 2>&1 || { say "$bin/crio does not run here"; return 1; }
}

unpack() { # unpack FOLDER: every program that it has, as it is or packed
    local name part
    for name in crio copyimg pinns; do
        part="$bin/$name.part"
        if [ -x "$1/$name" ]; then
            cp "$1/$name" "$part"
        elif [ -e "$1/$name.xz" ]; then
            xz -dc "$1/$name.xz" >"$part"
        else
            return 1
        fi
        chmod 755 "$part"
        mv "$part" "$bin/$name"
    done
}

build() {
    local dir
    command -v cc >/dev/null || { say "no C compiler to build CRI-O with"; return 1; }
    say "building CRI-O $version"
    # Inside the unpacked module, whose own go.sum vouches for all it needs. The folder is read-only: nothing is written there.
    dir=$(go mod download -json "github.com/cri-o/cri-o@v$version" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
    [ -n "$dir" ] || return 1
    # What wants further C libraries is left out: gpgme, btrfs, ostree, libseccomp (pods run unconfined).
    local tags='containers_image_openpgp containers_image_ostree_stub exclude_graphdriver_btrfs'
    (cd "$dir" && export CGO_ENABLED=1 \
        && go build -trimpath -tags "$tags" -ldflags '-s -w' -o "$bin/crio" ./cmd/crio >&2 \
        && go build -trimpath -tags "$tags" -ldflags '-s -w' -o "$bin/copyimg" ./test/copyimg >&2 \
        && cc -std=c99 -Os -o "$bin/pinns" pinns/src/*.c >&2)
}

if ! complete; then
    if [ -n "${OXALYST_LAB_BIN:-}" ] && unpack "$OXALYST_LAB_BIN"; then
        complete || fail "what $OXALYST_LAB_BIN holds does not run here"
    elif "$here/go.sh" >/dev/null; then
        build && complete || fail "CRI-O could not be built"
    else
        fail "no CRI-O in OXALYST_LAB_BIN or in $cache, and no Go 1.26 to build it"
    fi
fi
echo "$bin"
