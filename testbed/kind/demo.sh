#!/bin/sh
# A kind cluster with the real example driver, this operator and a policy, for machines with docker; `demo.sh down` takes it away.
# Nothing of the user's own kubeconfig is touched.
set -eu
cd "$(dirname "$0")/../.."

name=gpupartition
image=gpupartition:0.1.0 # as manifests/base/kustomization.yaml names it
chart=oci://registry.k8s.io/dra-example-driver/charts/dra-example-driver
chart_version=0.4.0
KUBECONFIG=${XDG_CACHE_HOME:-$HOME/.cache}/gpupartition/kind.kubeconfig
export KUBECONFIG

say() { printf '\n== %s\n' "$1"; }
stop() { echo "kind-demo: $1" >&2; exit "$2"; }

missing=
for tool in docker kind helm kubectl; do
  command -v "$tool" >/dev/null || missing="$missing $tool"
done
test -z "$missing" || stop "not found:$missing. Install that (kind 0.33 or newer, helm 3 or 4), or see \`make demo\`, which needs no docker." 127
docker info >/dev/null 2>&1 || stop "docker does not answer; start it, or let this account use it: \`docker info\` says why." 1

if [ "${1:-}" = down ]; then
  kind delete cluster --name "$name"
  rm -f "$KUBECONFIG"
  exit
fi
test -z "${1:-}" || stop "'$1' is nothing that it knows; \`down\` takes the cluster away." 2
mkdir -p "$(dirname "$KUBECONFIG")"

say "a cluster of Kubernetes 1.37"
kind get clusters | grep -qx "$name" || kind create cluster --name "$name" --config testbed/kind/cluster.yaml --wait 3m
kind export kubeconfig --name "$name"

say "the operator's image"
docker build --tag "$image" .
kind load docker-image "$image" --name "$name"

say "the example driver, from its own chart"
helm upgrade --install dra-example-driver "$chart" --version "$chart_version" \
  --namespace gpu-driver --create-namespace --values testbed/kind/driver.yaml --wait --timeout 5m

say "the operator"
kubectl apply -k manifests
kubectl -n gpupartition-system rollout status deployment/gpupartition --timeout=5m

say "a policy: every GPU in halves"
kubectl apply -f manifests/examples/driver-example.yaml -f manifests/examples/halves.yaml
kubectl get gpp --watch &
watching=$!
trap 'kill "$watching" 2>/dev/null || true' EXIT
kubectl wait --for=condition=Ready gpp/inference --timeout=10m
kill "$watching"
kubectl get gpn

cat <<END

Go on with it:
  export KUBECONFIG=$KUBECONFIG
  kubectl apply -f manifests/examples/pods/three-ways-to-ask.yaml
  kubectl get pods,resourceclaims
and take it away:
  make kind-demo ARGS=down
END
