#!/usr/bin/env bash
# Makes or finds the test machine of vm-run.sh and prints its folder (the last line of stdout; everything else goes to stderr):
# vmlinuz, initrd.img and root/, all from packages of Debian trixie, below ${OXALYST_CACHE:-$HOME/.cache/oxalyst} (300 MB, half a
# minute). Needs root on a Debian.
set -euo pipefail

suite=trixie
say() { echo "vm-build.sh: $*" >&2; }
fail() { say "$*"; exit 1; }
here=$(cd "$(dirname "$0")" && pwd)
[ "$(id -u)" = 0 ] || fail "making a machine needs root"
[ "$(uname -m)" = x86_64 ] || fail "the machine is an x86-64 one"
command -v apt-get >/dev/null || fail "no apt here"
cache="${OXALYST_CACHE:-$HOME/.cache/oxalyst}"
dir="$cache/vm-$suite-$(cat "$0" "$here/vm/early-init" | sha256sum | cut -c 1-12)"
mkdir -p "$cache"
exec 9>"$cache/vm.lock"
flock 9
"$here/packages.sh" qemu-system-x86:/usr/bin/qemu-system-x86_64 mmdebstrap:/usr/bin/mmdebstrap cpio:/usr/bin/cpio \
    xz-utils:/usr/bin/xz binutils:/usr/bin/strip || fail "not every package that the machine needs is here"
if [ -e "$dir/initrd.img" ]; then
    echo "$dir"
    exit 0
fi

rm -rf "$cache/vm-$suite"-* "$cache/vm.part"
work="$cache/vm.part"
mkdir -p "$work"
mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null \
    | grep -Eo '^(deb .*|URIs: .*)' | grep -Eo '(https?|file|mirror[a-z+]*):[^ ]+' | grep -v security | head -n 1 || true)
[ -n "$mirror" ] || fail "the system's apt sources name no Debian mirror"
say "making a machine of $suite from $mirror"
# The kernel is unpacked outside and not installed; the one for clouds has no 9p.
mmdebstrap --quiet --variant=minbase --include=containerd,runc,conmon,numactl,iproute2,procps,busybox-static,systemd,dbus \
    --customize-hook='chroot "$1" sh -c "cd /boot && apt-get download \$(apt-cache depends linux-image-amd64 | sed -n s/.*Depends:.//p)"' \
    "$suite" "$work/root" "$mirror" >&2
dpkg-deb -x "$work"/root/boot/linux-image-*.deb "$work/kernel"
rm "$work"/root/boot/*.deb
cp "$work"/kernel/boot/vmlinuz-* "$work/vmlinuz"

# --- the first file system: busybox, and what is needed to reach the others over 9p -----------------------------------------
early="$work/early"
mkdir -p "$early"/{bin,modules,dev,proc,sys,lower,upper,new}
cp "$work/root/bin/busybox" "$early/bin/"
ln -s busybox "$early/bin/sh"
number=10
for module in netfs 9pnet 9pnet_virtio 9p overlay; do
    found=$(find "$work/kernel" -name "$module.ko.xz")
    [ -n "$found" ] || fail "the kernel has no module $module"
    xz -dc "$found" >"$early/modules/$number-$module.ko"
    strip --strip-debug "$early/modules/$number-$module.ko"
    number=$((number + 1))
done
cp "$here/vm/early-init" "$early/init"
chmod 755 "$early/init"
(cd "$early" && find . | cpio -o -H newc --quiet) >"$work/initrd.img"
rm -r "$early" "$work/kernel"
mv "$work" "$dir"
echo "$dir"
