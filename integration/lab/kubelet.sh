#!/usr/bin/env bash
# kubelet.sh BINARIES RUNTIME-SOCKET KUBE DIR PORT: becomes a kubelet that registers the node "localhost" with the API server of
# kube-up.sh KUBE, runs pods in the runtime at RUNTIME-SOCKET, and serves https on 127.0.0.1:PORT with a certificate of KUBE's
# authority, to those whom the API server lets in. Everything it keeps is in DIR. $KUBELET_CONFIG: more lines of its configuration.
#
# It has a mount namespace of its own, in which the machine's sysctls are files of DIR: a kubelet sets them. Volumes that it would
# mount are not seen by the runtime, so pods here have none. Needs root and openssl.
set -euo pipefail
binaries=$(realpath -s "$1") socket=$(realpath -sm "$2") kube=$(realpath "$3") port=$5
mkdir -p "$4"/{root/device-plugins,log,pki,sysctl}
dir=$(realpath "$4")
cd "$dir"

if [ ! -e pki/kubelet.crt ]; then
    {
        openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=localhost \
            -keyout pki/kubelet.key -out pki/kubelet.csr
        openssl x509 -req -days 2 -in pki/kubelet.csr -CA "$kube/pki/ca.crt" -CAkey "$kube/pki/ca.key" -CAcreateserial \
            -extfile <(echo 'subjectAltName=IP:127.0.0.1,DNS:localhost') -out pki/kubelet.crt
    } 2>pki/openssl.log
fi
cat >config.yaml <<Y
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
containerRuntimeEndpoint: unix://$socket
podLogsDir: $dir/log
address: 127.0.0.1
port: $port
healthzPort: 0
tlsCertFile: $dir/pki/kubelet.crt
tlsPrivateKeyFile: $dir/pki/kubelet.key
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $kube/pki/ca.crt}}
authorization: {mode: Webhook}
failSwapOn: false
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 50Mi}
nodeStatusUpdateFrequency: 2s
${KUBELET_CONFIG:-}
Y
cat >fake.list <<'L'
vm/overcommit_memory 1
vm/panic_on_oom 0
kernel/panic 10
kernel/panic_on_oops 1
kernel/keys/root_maxkeys 1000000
kernel/keys/root_maxbytes 25000000
L
mkdir -p /var/lib/kubelet/device-plugins
exec unshare --mount --propagation private bash -c '
    set -e
    while read -r name value; do
        mkdir -p "sysctl/$(dirname "$name")"
        echo "$value" >"sysctl/$name"
        [ ! -e "/proc/sys/$name" ] || mount --bind "sysctl/$name" "/proc/sys/$name"
    done <fake.list
    mount --bind root/device-plugins /var/lib/kubelet/device-plugins
    exec "$1/kubelet" --config config.yaml --hostname-override localhost --root-dir "$PWD/root" --cert-dir "$PWD/pki" \
        --kubeconfig "$2/kubeconfig" --v 2' - "$binaries" "$kube"
