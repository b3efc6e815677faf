#!/bin/sh
# Creates the secrets that the manifests name. Values pass through pipes: never through arguments or files.
# Each value is complete before kubectl starts: of a pipe, the shell reports the last command alone.
set -eu
namespace='{{NAMESPACE}}'
config=${1:?"usage: create-secrets.sh CONFIG_ENV"}

kubectl get namespace "$namespace" >/dev/null 2>&1 || kubectl create namespace "$namespace"
exists() {
  kubectl --namespace "$namespace" get secret "$1" >/dev/null 2>&1
}
random_key() {
  key=$(openssl rand -hex 24)
  if [ "${#key}" -ne 48 ]; then
    echo "openssl gave no random key" >&2
    return 1
  fi
  echo "$key"
}
if exists tandem-database; then
  echo "tandem-database exists"
else
  password=$(random_key)
  printf '%s' "$password" |
    kubectl --namespace "$namespace" create secret generic tandem-database --from-file=password=/dev/stdin
fi
if exists tandem-keys; then
  echo "tandem-keys exists"
else
  api=$(random_key)
  admin=$(random_key)
  printf 'api.keys=%s\nadmin.key=%s\n' "$api" "$admin" |
    kubectl --namespace "$namespace" create secret generic tandem-keys --from-env-file=/dev/stdin
fi
if exists huggingface-token; then
  echo "huggingface-token exists"
else
  token=$(tandem deploy secret --env "$config" HUGGINGFACE_TOKEN)
  if [ -z "$token" ]; then
    echo "$config has no HUGGINGFACE_TOKEN" >&2
    exit 1
  fi
  printf '%s' "$token" |
    kubectl --namespace "$namespace" create secret generic huggingface-token --from-file=token=/dev/stdin
fi
