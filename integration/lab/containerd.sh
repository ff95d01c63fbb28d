#!/usr/bin/env bash
# Finds or fetches a containerd with NRI and prints the folder that holds `containerd`, `ctr` and the runc shim (the last
# line of stdout; everything else goes to stderr).
#
#   containerd.sh [2.1|1.7]      which line is wanted first (default 2.1); another one is taken when it is not served
#
# The system stays as it is: packages of newer Debian suites come through a private apt configuration (own sources, own
# lists, own cache) and are unpacked, not installed, below ${OXALYST_CACHE:-$HOME/.cache/oxalyst}. Only runc and busybox,
# which the own suite has, are installed, and only when they are missing and we are root.
# OXALYST_CONTAINERD_DIR names a folder with the binaries and ends the search.
set -euo pipefail

wanted="${1:-2.1}"
say() { echo "containerd.sh: $*" >&2; }
fail() { say "$*"; exit 1; }

if [ -n "${OXALYST_CONTAINERD_DIR:-}" ]; then
    [ -x "$OXALYST_CONTAINERD_DIR/containerd" ] || fail "OXALYST_CONTAINERD_DIR=$OXALYST_CONTAINERD_DIR has no containerd in it"
    echo "$OXALYST_CONTAINERD_DIR"
    exit 0
fi
[ "$(uname -s)" = Linux ] || fail "containerd needs Linux"
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null \
    || fail "no apt here: put containerd 1.7 or 2.x in a folder and name it in OXALYST_CONTAINERD_DIR"

# One at a time: two suites that start together would unpack into the same folder.
cache="${OXALYST_CACHE:-$HOME/.cache/oxalyst}"
mkdir -p "$cache"
exec 9>"$cache/containerd.lock"
flock 9

# --- what the own suite has ------------------------------------------------------------------------------------------
missing=()
command -v runc >/dev/null || [ -x /usr/sbin/runc ] || missing+=(runc)
[ -x /bin/busybox ] || [ -x /usr/bin/busybox ] || missing+=(busybox-static)
[ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || missing+=(debian-archive-keyring)
if [ ${#missing[@]} -gt 0 ]; then
    [ "$(id -u)" = 0 ] || fail "missing packages: ${missing[*]}; install them, or run this as root"
    say "installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -y --no-install-recommends "${missing[@]}" >&2 \
        || { apt-get update >&2 && apt-get install -y --no-install-recommends "${missing[@]}" >&2; } \
        || fail "apt-get could not install ${missing[*]}"
fi

# --- containerd, unpacked ----------------------------------------------------------------------------------------------
bin_of() { echo "$cache/containerd-$1/usr/bin"; }
if "$(bin_of "$wanted")/containerd" --version >&2 2>/dev/null; then
    bin_of "$wanted"
    exit 0
fi

apt_root="$cache/apt"
mkdir -p "$apt_root/lists/partial" "$apt_root/cache/archives/partial" "$apt_root/empty"
# The mirror the machine itself uses, whatever it is; its security archive has no other suites.
mirror="$(apt-get indextargets --format '$(REPO_URI) $(LABEL)' 'Created-By: Packages' 2>/dev/null \
    | awk '$1 !~ /security/ && $2 == "Debian" { print $1; exit }')"
if [ -z "$mirror" ]; then
    # The lists were never fetched: read the sources themselves.
    mirror="$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null \
        | grep -Eo '^(deb .*|URIs: .*)' | grep -Eo '(https?|file|mirror[a-z+]*):[^ ]+' | grep -v security | head -n 1 || true)"
fi
[ -n "$mirror" ] || fail "the system's apt sources name no Debian mirror"
for suite in trixie sid bookworm-backports; do
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main"
done >"$apt_root/sources.list"

private_apt() {
    # Valid-until is not checked: a frozen mirror is better than none, and the archive's signature still is.
    apt-get -q -oDir::Etc::SourceList="$apt_root/sources.list" -oDir::Etc::SourceParts="$apt_root/empty" \
        -oDir::State::Lists="$apt_root/lists" -oDir::Cache="$apt_root/cache" \
        -oAcquire::Check-Valid-Until=false -oAcquire::Languages=none -oAPT::Sandbox::User=root "$@"
}

say "reading the package lists of newer suites from $mirror"
# A suite that the mirror does not serve is no reason to stop: what it serves is looked at below.
private_apt update >&2 || say "not every suite could be read; going on with those that could"

fetch() { # fetch LINE VERSION-GLOB
    local target="$cache/containerd-$1" work
    work="$(mktemp -d "$cache/unpack.XXXXXX")"
    if (cd "$work" && private_apt download "containerd$2" >&2) && dpkg-deb -x "$work"/containerd_*.deb "$work/root" \
        && "$work/root/usr/bin/containerd" --version >&2; then
        rm -rf "$target"
        mv "$work/root" "$target"
        rm -rf "$work"
        return 0
    fi
    rm -rf "$work"
    return 1
}

for line in "$wanted" 2.1 2.0 1.7 any; do
    if [ -x "$(bin_of "$line")/containerd" ]; then
        bin_of "$line"
        exit 0
    fi
    glob="=$line.*"
    [ "$line" = any ] && glob=""
    if fetch "$line" "$glob"; then
        bin_of "$line"
        exit 0
    fi
    say "containerd $line is not served here, or does not run here"
done
fail "no containerd could be fetched from $mirror"
