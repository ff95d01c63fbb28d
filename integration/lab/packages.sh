#!/usr/bin/env bash
# packages.sh PACKAGE:FILE…: installs each Debian package whose file is missing. Fails, with a reason, where it cannot.
set -uo pipefail

missing=()
for wanted; do
    [ -e "${wanted#*:}" ] || missing+=("${wanted%%:*}")
done
[ ${#missing[@]} -gt 0 ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "packages.sh: missing ${missing[*]}, and this is not root on a Debian" >&2
    exit 1
fi
echo "packages.sh: installing ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
install() { apt-get install -y --no-install-recommends "${missing[@]}" >&2; }
install || { apt-get update >&2 && install; } || { echo "packages.sh: could not install ${missing[*]}" >&2; exit 1; }
