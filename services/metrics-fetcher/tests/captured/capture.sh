#!/bin/bash
# capture.sh > v1.txt (or v2.txt): what this machine's kernel tells of two containers, one named as the cgroupfs driver names
# them and under load, one as the systemd driver does and idle; and of the machine itself. As root. Removes what it makes.
set -u
CG=/sys/fs/cgroup OWN=oxalyst-capture-$$
UID1=6a1f6e0c-1111-2222-3333-444455556666 UID2=7b2f7e1d-1111-2222-3333-444455556666
ID1=$(printf 'a%.0s' {1..64}) ID2=$(printf 'b%.0s' {1..64})
BUSY=kubepods/burstable/pod$UID1/$ID1
IDLE=kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod${UID2//-/_}.slice/cri-containerd-$ID2.scope
if [ -e $CG/cgroup.controllers ]; then trees=(.); else trees=(cpu cpuacct memory blkio pids hugetlb); fi
make() { # TREE PATH
    local dir=$CG/$1/$OWN part
    mkdir -p "$dir"
    for part in . ${2//\// }; do
        # All that the parent has, where there is such a thing.
        for c in cpu memory io pids hugetlb cpuset; do echo "+$c" > "$dir/cgroup.subtree_control"; done 2>/dev/null
        [ "$part" = . ] || { dir=$dir/$part; mkdir -p "$dir"; }
    done
}
for c in cpu memory io pids hugetlb cpuset; do echo "+$c" > $CG/cgroup.subtree_control; done 2>/dev/null
for t in "${trees[@]}"; do
    [ -d $CG/$t ] || continue
    make $t $BUSY; make $t $IDLE
done
put() { for f in $CG/*/$OWN/$BUSY/$1 $CG/$OWN/$BUSY/$1; do [ -e $f ] && echo "$2" > $f; done; }
put cpu.cfs_quota_us 20000; put cpu.max "20000 100000"
put memory.limit_in_bytes 67108864; put memory.max 67108864
put pids.max 16
enter() { for t in "${trees[@]}"; do [ -d $CG/$t ] && echo $2 > $CG/$t/$OWN/$1/cgroup.procs; done; }
{ sleep 0.5; echo go; sleep 60; } | bash -c 'read go; x=$(head -c 8000000 /dev/zero | tr "\0" a); while :; do :; done' & busy=$!
enter $BUSY $busy
sleep 60 & idle=$!
enter $IDLE $idle
for _ in {1..120}; do
    m=$(cat $CG/memory/$OWN/$BUSY/memory.usage_in_bytes $CG/$OWN/$BUSY/memory.current 2>/dev/null)
    [ "$m" -gt 11000000 ] && break
    sleep 0.5
done
sleep 3
kill -STOP $busy; sleep 0.5
show() { [ -r "$2" ] && { echo "=== $1"; cat "$2" 2>/dev/null; }; }
for t in "${trees[@]}"; do
    for path in $BUSY $IDLE; do
        for f in $CG/$t/$OWN/$path/{cpu,cpuacct,memory,io,blkio,pids,hugetlb}.*; do
            case ${f##*/} in *pressure_level|*event_control|*force_empty|*reclaim|*peak|*oom.group) continue;; esac
            to=sys/fs/cgroup/$t/$path/${f##*/}
            show "${to/\/.\///}" "$f"
        done
    done
done
[ -e $CG/cgroup.controllers ] && show sys/fs/cgroup/cgroup.controllers $CG/cgroup.controllers
for f in stat meminfo loadavg vmstat zoneinfo diskstats 1/net/dev pressure/cpu pressure/memory pressure/io sys/vm/watermark_scale_factor; do
    show proc/$f /proc/$f
done
for f in /sys/devices/system/node/node*/{cpulist,meminfo,numastat}; do show "${f#/}" $f; done
kill -KILL $busy $idle $(jobs -p) 2>/dev/null; wait $busy $idle 2>/dev/null
for t in "${trees[@]}"; do [ -d $CG/$t/$OWN ] && find $CG/$t/$OWN -depth -type d -exec rmdir {} \; 2>/dev/null; done
exit 0
