#!/usr/bin/env bash
# vm-run.sh MACHINE SHARE SECONDS COMMAND…: boots the machine of vm-build.sh (qemu's software emulation: 2 sockets, 4 NUMA nodes,
# 8 CPUs, cgroup v2 alone), with the folder SHARE read-only at /share, and runs COMMAND there as root. Gives its output and its exit
# code; 125 is a failure of the machine itself. VM_INIT=systemd has systemd and its bus run there, with COMMAND as a service.
set -uo pipefail
machine=$1 share=$2 seconds=$3
shift 3
here=$(cd "$(dirname "$0")" && pwd)
memory=768 # MiB of a node
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/vm"
cp "$here/vm/${VM_INIT:-init}" "$work/vm/init"
chmod 755 "$work/vm/init"
printf '%q ' "$@" >"$work/vm/command"

topology=(-smp 8,sockets=2,cores=2,threads=2 -m $((4 * memory)))
for node in 0 1 2 3; do
    topology+=(-object "memory-backend-ram,id=m$node,size=${memory}M"
        -numa "node,nodeid=$node,cpus=$((2 * node))-$((2 * node + 1)),memdev=m$node")
done
for node in 0 1 2 3; do
    for other in 0 1 2 3; do
        [ $node = $other ] && continue
        distance=21
        [ $((node / 2)) = $((other / 2)) ] && distance=12
        topology+=(-numa "dist,src=$node,dst=$other,val=$distance")
    done
done
folder() { echo "local,path=$1,mount_tag=$2,security_model=none,multidevs=remap"; }

mkfifo "$work/out" "$work/err"
cat "$work/out" &
readers=$!
cat "$work/err" >&2 &
readers+=" $!"
# Kept open here, so that the readers end when qemu has.
exec 3>"$work/out" 4>"$work/err"
timeout -k 5 "$seconds" qemu-system-x86_64 -accel tcg,thread=multi -cpu EPYC "${topology[@]}" \
    -nodefaults -no-reboot -display none -monitor none -serial "file:$work/console" \
    -kernel "$machine/vmlinuz" -initrd "$machine/initrd.img" \
    -append "console=ttyS0 quiet panic=-1 lpj=8000000 cgroup_no_v1=all mitigations=off nokaslr random.trust_cpu=on" \
    -virtfs "$(folder "$machine/root" root),readonly=on" -virtfs "$(folder "$work/vm" vm)" \
    -virtfs "$(folder "$share" share),readonly=on" -device virtio-serial \
    -chardev "file,id=o,path=$work/out,append=on" -device virtserialport,nr=1,chardev=o \
    -chardev "file,id=e,path=$work/err,append=on" -device virtserialport,nr=2,chardev=e \
    >"$work/qemu" 2>&1 </dev/null
ended=$?
exec 3>&- 4>&-
# shellcheck disable=SC2086
wait $readers
[ -s "$work/vm/code" ] && exit "$(cat "$work/vm/code")"
{
    echo "vm-run.sh: the machine told no exit code (qemu: $ended, 124 is a time-out)"
    grep -v "TCG doesn't support" "$work/qemu"
    tail -n 30 "$work/console"
} >&2
exit 125
