#!/bin/bash
# kube-up.sh BINARIES DIR: a private etcd and kube-apiserver on loopback; the client's way in is DIR/kubeconfig.
#
# BINARIES holds etcd, kube-apiserver and kubectl, or kube.xz: one program that is all three by the name it is called by
# (unpacked once into KUBE_CACHE, by default DIR/bin). Ports are free ones. DIR/audit.log has a line for each request on
# customnoderesources. Stop with kube-down.sh DIR. Needs openssl, and xz for kube.xz.
# KUBE_CONTROL=1 adds the scheduler and those controllers that make pods of Deployments; BINARIES holds them then.
set -euo pipefail
source_dir=$(realpath "$1")
mkdir -p "$2"
dir=$(realpath "$2")
here=$(dirname "$(realpath "$0")")

bin=$source_dir
if [ ! -x "$bin/kube-apiserver" ]; then
  bin=${KUBE_CACHE:-$dir/bin}
  mkdir -p "$bin"
  if [ ! -x "$bin/kube" ]; then
    unpacked=$(mktemp "$bin/kube.XXXXXX")
    xz -dc "$source_dir/kube.xz" >"$unpacked"
    chmod 755 "$unpacked"
    mv "$unpacked" "$bin/kube"
  fi
  for name in etcd kube-apiserver kubectl; do ln -sfn kube "$bin/$name"; done
fi
ln -sfn "$bin/kubectl" "$dir/kubectl"

cd "$dir"
mkdir -p pki
# One authority, one server certificate, one key for service accounts.
quiet() { "$@" 2>>pki/openssl.log; }
ec=(-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes)
quiet openssl req -x509 "${ec[@]}" -days 2 -subj /CN=oxalyst-test-ca -keyout pki/ca.key -out pki/ca.crt
quiet openssl req "${ec[@]}" -subj /CN=kube-apiserver -keyout pki/server.key -out pki/server.csr
quiet openssl x509 -req -days 2 -in pki/server.csr -CA pki/ca.crt -CAkey pki/ca.key -CAcreateserial \
  -extfile <(echo 'subjectAltName=IP:127.0.0.1,DNS:localhost') -out pki/server.crt
quiet openssl ecparam -name prime256v1 -genkey -noout -out pki/accounts.key
quiet openssl ec -in pki/accounts.key -pubout -out pki/accounts.pub

cat >tokens.csv <<'T'
admin-token,admin,admin,system:masters
reader-token,pod-reader,pod-reader,
T
cat >audit.yaml <<'Y'
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  resources: [{group: node.katalyst.kubewharf.io}]
- level: None
Y

# A port that nobody listens on now; somebody may take it in between, then the start fails and another try is made.
free_port() {
  local port
  for _ in $(seq 100); do
    port=$((20000 + RANDOM % 12000))
    if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then echo "$port"; return; fi
  done
  echo 'kube-up.sh: no free port found' >&2
  return 1
}

control() {
  [ -n "${KUBE_CONTROL:-}" ] || return 0
  setsid "$bin/kube-scheduler" --kubeconfig kubeconfig --leader-elect=false --bind-address 127.0.0.1 \
    --secure-port "$(free_port)" >scheduler.log 2>&1 </dev/null &
  echo $! >scheduler.pid
  setsid "$bin/kube-controller-manager" --kubeconfig kubeconfig --leader-elect=false --bind-address 127.0.0.1 \
    --secure-port "$(free_port)" \
    --controllers deployment-controller,replicaset-controller,garbage-collector-controller,node-lifecycle-controller \
    >controllers.log 2>&1 </dev/null &
  echo $! >controllers.pid
}

try() {
  local etcd_port peer_port api_port
  etcd_port=$(free_port) peer_port=$(free_port) api_port=$(free_port)
  rm -rf etcd-data
  setsid "$bin/etcd" --data-dir etcd-data --unsafe-no-fsync --log-level error \
    --listen-client-urls "http://127.0.0.1:$etcd_port" --advertise-client-urls "http://127.0.0.1:$etcd_port" \
    --listen-peer-urls "http://127.0.0.1:$peer_port" >etcd.log 2>&1 </dev/null &
  echo $! >etcd.pid
  # A loopback address cannot be published as the endpoint of the service "kubernetes": no reconciler.
  setsid "$bin/kube-apiserver" --etcd-servers "http://127.0.0.1:$etcd_port" \
    --bind-address 127.0.0.1 --advertise-address 127.0.0.1 --secure-port "$api_port" --endpoint-reconciler-type none \
    --tls-cert-file pki/server.crt --tls-private-key-file pki/server.key --client-ca-file pki/ca.crt \
    --token-auth-file tokens.csv --authorization-mode RBAC --disable-admission-plugins ServiceAccount \
    --service-cluster-ip-range 10.0.0.0/24 --service-account-issuer https://kubernetes.default.svc \
    --service-account-signing-key-file pki/accounts.key --service-account-key-file pki/accounts.pub \
    --audit-policy-file audit.yaml --audit-log-path "$dir/audit.log" >api.log 2>&1 </dev/null &
  echo $! >api.pid
  cat >kubeconfig <<Y
apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "https://127.0.0.1:$api_port", certificate-authority: $dir/pki/ca.crt}}]
users: [{name: admin, user: {token: admin-token}}]
contexts: [{name: test, context: {cluster: test, user: admin}}]
current-context: test
Y
  for _ in $(seq 600); do
    if [ "$("$bin/kubectl" --kubeconfig kubeconfig get --raw /readyz 2>/dev/null)" = ok ]; then
      control
      return 0
    fi
    kill -0 "$(cat api.pid)" 2>/dev/null && kill -0 "$(cat etcd.pid)" 2>/dev/null || return 1
    sleep 0.1
  done
  return 1
}

for _ in 1 2 3; do
  if try; then exit 0; fi
  tail -n 5 etcd.log api.log >&2
  "$here/kube-down.sh" "$dir"
done
echo 'kube-up.sh: the API server did not become ready' >&2
exit 1
