"""Field names of objects whose schemas are in no package: JobSet, MPIJob, TrainJob, and Kueue's label.

Sources, read on 2026-11-24: jobset v1alpha2 (api/jobset/v1alpha2/jobset_types.go), mpi-operator v2beta1
(pkg/apis/kubeflow/v2beta1/types.go), trainer v1alpha1 (pkg/apis/trainer/v1alpha1/trainjob_types.go).
A table has the fields of one object; POD, JOB and ANY end the descent.
"""

POD = "pod template"  # checked with the schemas of Kubernetes
JOB = "job template"
ANY = "any value"

REPLICA = {"replicas": ANY, "template": POD, "restartPolicy": ANY}
PATCHED_JOB = {"name": ANY, "template": {"metadata": ANY, "spec": {"template": {
    "metadata": ANY, "spec": {name: ANY for name in (
        "serviceAccountName", "volumes", "initContainers", "containers", "imagePullSecrets", "nodeSelector",
        "affinity", "tolerations", "schedulingGates")}}}}}
SPECS = {
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): {
        "replicatedJobs": [{"name": ANY, "template": JOB, "replicas": ANY, "dependsOn": ANY, "groupName": ANY}],
        "network": ANY, "successPolicy": ANY, "failurePolicy": {"maxRestarts": ANY, "rules": ANY,
                                                                "restartStrategy": ANY},
        "startupPolicy": ANY, "suspend": ANY, "coordinator": ANY, "managedBy": ANY,
        "ttlSecondsAfterFinished": ANY, "volumeClaimPolicies": ANY},
    ("kubeflow.org/v2beta1", "MPIJob"): {
        "slotsPerWorker": ANY, "launcherCreationPolicy": ANY, "sshAuthMountPath": ANY, "waitForWorkers": ANY,
        "mpiImplementation": ANY, "mpiReplicaSpecs": {"Launcher": REPLICA, "Worker": REPLICA},
        "runPolicy": {"cleanPodPolicy": ANY, "ttlSecondsAfterFinished": ANY, "activeDeadlineSeconds": ANY,
                      "backoffLimit": ANY, "schedulingPolicy": ANY, "suspend": ANY, "managedBy": ANY}},
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): {
        "runtimeRef": {"name": ANY, "apiGroup": ANY, "kind": ANY}, "initializer": ANY,
        "trainer": {"image": ANY, "command": ANY, "args": ANY, "env": ANY, "numNodes": ANY,
                    "resourcesPerNode": ANY, "numProcPerNode": ANY},
        "runtimePatches": [{"manager": ANY, "time": ANY, "trainingRuntimeSpec": {"template": {
            "metadata": ANY, "spec": {"replicatedJobs": [PATCHED_JOB]}}}}],
        "suspend": ANY, "activeDeadlineSeconds": ANY, "managedBy": ANY},
}
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


def faults_of(entry):
    """(unknown fields, pod templates, job templates) of an object."""
    unknown, pods, jobs = [], [], []

    def walk(value, table, path):
        if table == ANY:
            return
        if table == POD:
            pods.append(value)
        elif table == JOB:
            jobs.append(value)
        elif isinstance(table, list):
            for i, item in enumerate(value):
                walk(item, table[0], f"{path}[{i}]")
        else:
            for name, item in value.items():
                if name in table:
                    walk(item, table[name], f"{path}.{name}")
                else:
                    unknown.append(f"{path}.{name}")

    walk(entry["spec"], SPECS[entry["apiVersion"], entry["kind"]], "spec")
    return unknown, pods, jobs
