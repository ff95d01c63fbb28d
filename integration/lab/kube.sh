#!/usr/bin/env bash
# Finds or builds a current Kubernetes and prints the folder that holds etcd, kube-apiserver, kube-controller-manager,
# kube-scheduler, kubelet and kubectl (the last line of stdout; everything else goes to stderr).
#
# They are one program, `kube` (lab/kube/main.go). It is taken from, in this order: $OXALYST_LAB_BIN (kube or kube.xz), the cache
# below ${OXALYST_CACHE:-$HOME/.cache/oxalyst}, a build where Go 1.26 or newer is there (half an hour of CPU, once).
set -euo pipefail

version=1.37.2
say() { echo "kube.sh: $*" >&2; }
fail() { say "$*"; exit 1; }
here=$(cd "$(dirname "$0")" && pwd)
cache="${OXALYST_CACHE:-$HOME/.cache/oxalyst}"
bin="$cache/kube-$version/bin"
mkdir -p "$bin"
exec 9>"$cache/kube.lock"
flock 9

"$here/packages.sh" xz-utils:/usr/bin/xz openssl:/usr/bin/openssl || fail "not every package that Kubernetes needs is here"

complete() { [ -x "$bin/kube" ] && "$bin/kube" kubelet --version >&2; }

build() {
    local work="$cache/kube-$version/src" module name set=""
    say "building Kubernetes $version: this takes long, and is done once"
    mkdir -p "$work"
    cp "$here/kube/main.go" "$work/"
    cd "$work"
    export CGO_ENABLED=0 GOFLAGS="-mod=mod -trimpath"
    module=$(go mod download -json "k8s.io/kubernetes@v$version" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')
    # Kubernetes replaces its staging modules by folders of its own. A dependency's replace lines count for nothing, so the
    # same is said here with the versions under which they are published.
    {
        echo "module kube"
        grep -E '^(go|godebug) ' "$module"
        echo "require k8s.io/kubernetes v$version"
        sed -n "s,^\t\(k8s.io/[^ ]*\) => ./staging/.*,replace \1 => \1 v0.${version#1.},p" "$module"
    } >go.mod
    # Clients compare versions, and refuse what calls itself "master".
    for name in gitVersion=v$version gitMajor=1 gitMinor="$(cut -d . -f 2 <<<"$version")" gitTreeState=clean \
        gitCommit=v$version buildDate=1970-01-01T00:00:00Z; do
        set+=" -X k8s.io/component-base/version.$name -X k8s.io/client-go/pkg/version.$name"
    done
    go build -gcflags=all=-dwarf=false -ldflags "-s -w $set" -o "$bin/kube.part" . >&2
    mv "$bin/kube.part" "$bin/kube"
}

if ! complete; then
    given="${OXALYST_LAB_BIN:-}"
    if [ -n "$given" ] && [ -x "$given/kube" ]; then
        cp "$given/kube" "$bin/kube.part"
        mv "$bin/kube.part" "$bin/kube"
    elif [ -n "$given" ] && [ -e "$given/kube.xz" ]; then
        xz -dc "$given/kube.xz" >"$bin/kube.part"
        chmod 755 "$bin/kube.part"
        mv "$bin/kube.part" "$bin/kube"
    elif "$here/go.sh" 26 >/dev/null; then
        (build) || fail "Kubernetes could not be built"
    else
        fail "no Kubernetes in OXALYST_LAB_BIN or in $cache, and no Go 1.26 to build it"
    fi
    complete || fail "$bin/kube does not run here"
fi
for name in etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl; do
    ln -sfn kube "$bin/$name"
done
echo "$bin"
