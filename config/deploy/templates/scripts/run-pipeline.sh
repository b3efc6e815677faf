#!/bin/sh
# Runs the five steps in order. Waits for each job, prints its log, and stops at the first failure.
# A second run repeats the step that failed and keeps the complete ones; `kubectl delete job NAME` repeats one of them.
set -eu
namespace='{{NAMESPACE}}'
here=$(cd "$(dirname "$0")/.." && pwd)
timeout_s=${TIMEOUT_S:-86400}

ended() {  # ended JOB CONDITION
  [ "$(kubectl --namespace "$namespace" get job "$1" --ignore-not-found \
    --output "jsonpath={.status.conditions[?(@.type==\"$2\")].status}")" = True ]
}

run_step() {  # run_step JOB FILE
  echo "=== $1"
  if ended "$1" Complete; then
    echo "$1 is complete already"
    return
  fi
  if ended "$1" Failed; then  # of an earlier run
    kubectl --namespace "$namespace" delete job "$1" --wait=true
  fi
  kubectl apply --filename "$here/kubernetes/pipeline/$2"
  started=$(date +%s)
  until ended "$1" Complete; do
    if ended "$1" Failed || [ $(($(date +%s) - started)) -ge "$timeout_s" ]; then
      # A job whose pod never started has no logs; its failure is reported all the same.
      kubectl --namespace "$namespace" logs "job/$1" --all-containers --tail=200 || true
      echo "$1 failed" >&2
      exit 1
    fi
    sleep "${POLL_S:-5}"
  done
  kubectl --namespace "$namespace" logs "job/$1" --all-containers --tail=20
}

kubectl apply --kustomize "$here/kubernetes/pipeline"
run_step step1-convert step1-convert-hf-to-maxtext.yaml
run_step step2-fine-tuning step2-fine-tuning.yaml
run_step step3-inference-test step3-inference-test.yaml
run_step step4-export step4-convert-maxtext-to-hf.yaml
echo "=== step5-serving"
kubectl apply --filename "$here/kubernetes/pipeline/step5-serving.yaml"
kubectl --namespace "$namespace" rollout status deployment/step5-serving --timeout="${timeout_s}s"
