#!/bin/sh
# Creates the secrets that the manifests name. Values pass through pipes: never through arguments or files.
set -eu
namespace='{{NAMESPACE}}'
config=${1:?"usage: create-secrets.sh CONFIG_ENV"}

kubectl get namespace "$namespace" >/dev/null 2>&1 || kubectl create namespace "$namespace"
exists() {
  kubectl --namespace "$namespace" get secret "$1" >/dev/null 2>&1
}
if exists huggingface-token; then
  echo "huggingface-token exists"
else
  tandem deploy secret --env "$config" HUGGINGFACE_TOKEN |
    kubectl --namespace "$namespace" create secret generic huggingface-token --from-file=token=/dev/stdin
fi
if exists tandem-database; then
  echo "tandem-database exists"
else
  openssl rand -hex 24 | tr -d '\n' |
    kubectl --namespace "$namespace" create secret generic tandem-database --from-file=password=/dev/stdin
fi
if exists tandem-keys; then
  echo "tandem-keys exists"
else
  { openssl rand -hex 24; openssl rand -hex 24; } |
    sed -e '1s/^/api.keys=/' -e '2s/^/admin.key=/' |
    kubectl --namespace "$namespace" create secret generic tandem-keys --from-env-file=/dev/stdin
fi
