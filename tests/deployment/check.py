"""The checks of tests/deployment/run; README.md lists them. `check.py BINARY [unittest arguments]`."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import hcl2
import kubernetes_validate
import yaml

import crds
from steps import PipelineSteps, harness  # noqa: F401, the first is a test

BINARY = ""
ROOT = pathlib.Path(__file__).resolve().parents[2]
KUBERNETES = "1.31"
TOKEN = "hf_" + "A1" * 16
SEED_A = f"""\
PROJECT_ID=my-ml-project-123
REGION=us-east5
REPO_NAME=maxtext-demo
CLUSTER_NAME=maxtext-cluster
HUGGINGFACE_TOKEN={TOKEN}
MODEL_NAME="gemma2-2b"
CHECKPOINT_ID="20250928-190725"
OUTPUT_DIR="/gcs/artifacts/output/finetuned"
SCANNED_CKPT_BASE_DIR="/gcs/artifacts/checkpoints/scanned"
TOKENIZER_PATH="google/gemma-2-2b-it"
HF_OUTPUT_BASE_DIR="/gcs/artifacts/finetuned-hf-models"
"""
# Characters with a meaning in YAML, HCL and shells.
HOSTILE = "a: 'b' \"c\" \\d # {e} [f] & *g %h `id` é"
STEPS = ["step1-convert", "step2-fine-tuning", "step3-inference-test", "step4-export"]


def tandem(*arguments, check=True):
    done = subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise AssertionError(f"{arguments}: {done.returncode}\n{done.stderr}")
    return done


def objects_of(path):
    """The Kubernetes objects of a file."""
    return [entry for entry in yaml.safe_load_all(path.read_text()) if entry]


def pods_of(entry):
    """The pod specs of an object, at any depth."""
    found = []
    if isinstance(entry, dict):
        if "containers" in entry:
            found.append(entry)
        for value in entry.values():
            found += pods_of(value)
    elif isinstance(entry, list):
        for value in entry:
            found += pods_of(value)
    return found


class Rendered(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="tandem-deployment-")
        self.addCleanup(self.folder.cleanup)
        self.dir = pathlib.Path(self.folder.name)

    def render(self, env=SEED_A, name="out"):
        config = self.dir / "config.env"
        config.write_text(env)
        self.report = tandem("deploy", "render", "--env", config, "--out", self.dir / name)
        return self.dir / name

    def manifests(self, out):
        for path in sorted((out / "kubernetes").rglob("*.yaml")):
            for entry in objects_of(path):
                if "apiVersion" in entry and entry["kind"] != "Kustomization":
                    yield path, entry

    def test_core_objects_obey_the_schemas_of_kubernetes(self):
        kinds = set()
        for path, entry in self.manifests(self.render()):
            with self.subTest(path=path.name, kind=entry["kind"]):
                kubernetes_validate.validate(entry, KUBERNETES, strict=True)
            kinds.add(entry["kind"])
        self.assertEqual(kinds, {"Namespace", "PersistentVolumeClaim", "Job", "Deployment", "Service",
                                 "StatefulSet"})

    def test_the_schemas_refuse_a_misspelt_field(self):
        # The check above can fail.
        entry = next(entry for _, entry in self.manifests(self.render()) if entry["kind"] == "Job")
        entry["spec"]["backofLimit"] = 3
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(entry, KUBERNETES, strict=True)

    def test_pods_have_no_root_and_a_read_only_root(self):
        checked = 0
        for path, entry in self.manifests(self.render()):
            for pod in pods_of(entry):
                self.assertIs(pod["securityContext"]["runAsNonRoot"], True, path)
                self.assertGreater(pod["securityContext"]["runAsUser"], 0, path)
                for container in pod.get("initContainers", []) + pod["containers"]:
                    context = container["securityContext"]
                    self.assertIs(context["readOnlyRootFilesystem"], True, path)
                    self.assertIs(context["allowPrivilegeEscalation"], False, path)
                    self.assertEqual(context["capabilities"], {"drop": ["ALL"]}, path)
                    checked += 1
        self.assertGreaterEqual(checked, 9)

    def test_volumes_secrets_and_config_maps_exist(self):
        out = self.render()
        maps, secrets = set(), set()
        for path in (out / "kubernetes").rglob("kustomization.yaml"):
            maps |= {entry["name"] for entry in yaml.safe_load(path.read_text())["configMapGenerator"]}
        secrets = set(re.findall(r"create secret generic (\S+)", (out / "scripts/create-secrets.sh").read_text()))
        for path, entry in self.manifests(out):
            for pod in pods_of(entry):
                names = {volume["name"] for volume in pod.get("volumes", [])}
                claims = entry["spec"].get("volumeClaimTemplates", [])
                names |= {claim["metadata"]["name"] for claim in claims}
                for container in pod.get("initContainers", []) + pod["containers"]:
                    mounts = {mount["name"] for mount in container["volumeMounts"]}
                    self.assertLessEqual(mounts, names, path)
                for volume in pod.get("volumes", []):
                    if "configMap" in volume:
                        self.assertIn(volume["configMap"]["name"], maps, path)
                    if "secret" in volume:
                        self.assertIn(volume["secret"]["secretName"], secrets, path)

    def test_replicas_share_the_database_and_one_data_directory(self):
        serving = self.render() / "kubernetes/serving"
        entries = {(entry["kind"], entry["metadata"]["name"]): entry
                   for name in ("servers.yaml", "postgres.yaml") for entry in objects_of(serving / name)}
        server = entries["StatefulSet", "server"]["spec"]
        self.assertNotIn("volumeClaimTemplates", server)
        pod = server["template"]["spec"]
        arguments = dict(entry.split("=", 1) for entry in pod["containers"][0]["args"][1:])
        address = re.fullmatch(r"postgres://(\w+)@(\w+)/(\w+)", arguments["--database"])
        self.assertIn(("Service", address[2]), entries)
        postgres = entries["StatefulSet", "database"]["spec"]["template"]["spec"]
        variables = {entry["name"]: entry["value"] for entry in postgres["containers"][0]["env"]}
        self.assertEqual((variables["POSTGRES_USER"], variables["POSTGRES_DB"]), (address[1], address[3]))
        secrets = [{volume["secret"]["secretName"] for volume in each["volumes"] if "secret" in volume}
                   for each in (pod, postgres)]
        self.assertEqual(secrets[0] & secrets[1], {"tandem-database"})
        mounts = {mount["mountPath"]: mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
        self.assertEqual(arguments["--database-password-file"], "/run/secrets/database/password")
        self.assertEqual(mounts["/run/secrets/database"], "database")
        claim = next(volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"]
                     if volume["name"] == mounts[arguments["--data-dir"]])
        self.assertEqual(entries["PersistentVolumeClaim", claim]["spec"]["accessModes"], ["ReadWriteMany"])
        self.assertGreater(pod["terminationGracePeriodSeconds"], int(arguments["--drain-delay"]) + 30)

    def test_the_seeds_variables_and_labels_are_there(self):
        out = self.render()
        variables = yaml.safe_load((out / "kubernetes/pipeline/kustomization.yaml").read_text())
        literals = dict(entry.split("=", 1) for entry in variables["configMapGenerator"][0]["literals"])
        self.assertEqual(literals["MODEL_NAME"], "gemma2-2b")
        self.assertEqual(literals["CHECKPOINT_ID"], "20250928-190725")
        self.assertEqual(literals["SCANNED_CKPT_BASE_DIR"], "/gcs/artifacts/checkpoints/scanned")
        self.assertEqual(literals["HF_OUTPUT_BASE_DIR"], "/gcs/artifacts/finetuned-hf-models")
        self.assertEqual(literals["TOKENIZER_PATH"], "google/gemma-2-2b-it")
        labels = {entry["metadata"]["name"]: entry["metadata"].get("labels", {}).get("app")
                  for _, entry in self.manifests(out)}
        self.assertEqual(labels["step2-fine-tuning"], "maxtext-finetuning")
        self.assertEqual(labels["step3-inference-test"], "maxtext-inference-test")
        self.assertLessEqual(set(STEPS), set(labels))

    def test_the_token_is_in_no_rendered_file(self):
        out = self.render()
        for path in out.rglob("*"):
            if path.is_file():
                self.assertNotIn(TOKEN.encode(), path.read_bytes(), path)
        self.assertNotIn(TOKEN, self.report.stdout + self.report.stderr)
        self.assertEqual(tandem("deploy", "sanitize", "--check", out).stdout, "")
        found = tandem("deploy", "sanitize", "--check", self.dir, check=False)
        self.assertEqual(found.returncode, 1)
        self.assertEqual(found.stdout, f"{self.dir}/config.env:5: access token of the Hugging Face hub\n")
        self.assertEqual(tandem("deploy", "secret", "--env", self.dir / "config.env",
                                "HUGGINGFACE_TOKEN").stdout, TOKEN)

    def test_a_hostile_value_stays_one_value(self):
        quoted = HOSTILE.replace("\\", "\\\\").replace('"', '\\"').replace("`", "\\`")
        out = self.render(SEED_A + f'PROMPT="{quoted}"\n')
        variables = yaml.safe_load((out / "kubernetes/pipeline/kustomization.yaml").read_text())
        literals = dict(entry.split("=", 1) for entry in variables["configMapGenerator"][0]["literals"])
        self.assertEqual(literals["PROMPT"], HOSTILE)

    def test_an_unresolved_placeholder_is_an_error_with_its_file(self):
        config = self.dir / "config.env"
        shutil.copy(ROOT / "config/deploy/config.env.example", config)
        done = tandem("deploy", "render", "--env", config, "--out", self.dir / "out", check=False)
        self.assertEqual(done.returncode, 2)
        for name in ("PROJECT_ID", "REGION", "REPO_NAME"):
            self.assertRegex(done.stderr, rf"config\.env:\d+: {name}\b")
        self.assertFalse((self.dir / "out").exists())

    def test_terraform_parses_and_its_variables_match(self):
        folder = self.render() / "terraform"
        parsed = {}
        for path in folder.iterdir():
            with path.open() as file:
                parsed[path.name] = hcl2.load(file)
        declared = {re.sub('"', "", name) for entry in parsed["variables.tf"]["variable"] for name in entry
                    if not name.startswith("__")}
        given = {name for name in parsed["terraform.tfvars"] if not name.startswith("__")}
        self.assertLessEqual(given, declared)
        used = set()
        for path in folder.glob("*.tf"):
            used |= set(re.findall(r"\bvar\.(\w+)", path.read_text()))
        self.assertEqual(used, declared)
        if shutil.which("terraform"):
            subprocess.run(["terraform", "fmt", "-check", "-diff", str(folder)], check=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                           env={**os.environ, "CHECKPOINT_DISABLE": "1"})

    def test_kustomize_accepts_the_folders(self):
        if not shutil.which("kubectl"):
            self.skipTest("kubectl is not installed")
        out = self.render()
        for name, least in (("pipeline", 4), ("serving", 7)):
            done = subprocess.run(["kubectl", "kustomize", str(out / "kubernetes" / name)],
                                  capture_output=True, text=True, check=True)
            built = [entry for entry in yaml.safe_load_all(done.stdout) if entry]
            self.assertGreaterEqual(len(built), least)
            for entry in built:
                if entry["kind"] != "Namespace":
                    self.assertEqual(entry["metadata"]["namespace"], "tandem")
                kubernetes_validate.validate(entry, KUBERNETES, strict=True)

    def test_the_router_accepts_its_settings(self):
        if not shutil.which("haproxy"):
            self.skipTest("haproxy is not installed")
        settings = self.render() / "kubernetes/serving/haproxy.cfg"
        done = subprocess.run(["haproxy", "-c", "-f", str(settings)], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_the_container_file_has_two_targets_without_root(self):
        text = (self.render() / "container/Containerfile").read_text()
        text = re.sub(r"\\\n\s*", " ", text)
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        known = {"FROM", "COPY", "RUN", "ENV", "USER", "WORKDIR", "VOLUME", "STOPSIGNAL", "ENTRYPOINT", "EXPOSE"}
        stages, user, parent = {}, {}, {}
        for line in lines:
            word, rest = line.split(None, 1)
            self.assertIn(word, known, line)
            if word == "FROM":
                image, _, stage = rest.split()
                self.assertTrue(image in stages or re.search(r":[^:]+$", image), f"{image} has no tag")
                stages[stage] = []
                parent[stage] = image
                user[stage] = user.get(image, "0:0")
            elif word == "USER":
                user[stage] = rest
            elif word == "COPY" and "--from=" in rest:
                self.assertIn(re.search(r"--from=(\S+)", rest)[1], stages)
            stages[stage].append(line)
        for target in ("server", "trainer"):
            self.assertEqual(user[target], "10001:10001")
            self.assertEqual(parent[target], "base")
            self.assertTrue(any(line.startswith('ENTRYPOINT ["/usr/bin/tandem"') for line in stages[target]))
        self.assertFalse(any(re.search(r"\bADD\b|curl|:latest", line) for line in lines))
        # A static program cannot load MPI.
        copies = {target: " ".join(line for line in stages[target] if line.startswith("COPY"))
                  for target in ("server", "trainer")}
        self.assertIn("portable/tandem /usr/bin/tandem", copies["server"])
        self.assertIn("release/tandem /usr/bin/tandem", copies["trainer"])
        self.assertIn("/usr/lib/tandem/tandem_mpi.so", copies["trainer"])

    def test_the_trainer_has_the_sshd_that_a_worker_of_an_mpijob_starts(self):
        text = (self.render() / "container/Containerfile").read_text()
        trainer = text[text.index("AS trainer"):text.index("AS server")].replace("\\\n", " ")
        done = tandem("launch", "k8s", "spec.yaml", "--kind", "mpijob", "--image", "i", "--nodes", 2)
        spec = yaml.safe_load(done.stdout)["spec"]
        command = spec["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["command"]
        settings = re.search(r"printf '%s\\n' ((?:'[^']*'\s*)+)>" + re.escape(command[-1]), trainer)
        lines = dict(line.split(" ", 1) for line in re.findall("'([^']*)'", settings[1]))
        self.assertEqual(lines["HostKey"], spec["sshAuthMountPath"] + "/id_rsa")
        self.assertEqual(lines["AuthorizedKeysFile"], spec["sshAuthMountPath"] + "/authorized_keys")
        client = re.search(r"printf '%s\\n' ((?:'[^']*'\s*)+)>/etc/ssh/ssh_config.d/", trainer)[1]
        self.assertIn(f"Port {lines['Port']}'", client)
        self.assertIn("openssh-server", trainer)
        # sshd runs the command by the user's shell.
        self.assertIn("usermod --shell /bin/sh", trainer)

    def test_scripts_are_posix_and_executable(self):
        for path in (self.render() / "scripts").iterdir():
            self.assertTrue(os.access(path, os.X_OK), path)
            subprocess.run(["dash" if shutil.which("dash") else "sh", "-n", str(path)], check=True)

    def false_tools(self, **scripts):
        """The environment with these scripts in front of the path; each notes its arguments in `calls`."""
        tools = self.dir / "tools"
        tools.mkdir(exist_ok=True)
        for name, text in scripts.items():
            (tools / name).write_text(f'#!/bin/sh\ndir={self.dir}\necho "{name} $*" >> "$dir/calls"\n{text}')
            (tools / name).chmod(0o755)
        return {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "POLL_S": "0"}

    def calls(self):
        return (self.dir / "calls").read_text()

    def test_the_pipeline_script_stops_at_a_failure_and_the_next_run_repeats_that_step(self):
        out = self.render()
        # A cluster whose jobs are files: their condition. A question about a job without one sets it.
        env = self.false_tools(kubectl="""
case "$*" in
  *"apply --filename"*/step5*) ;;
  *"apply --filename"*)
    job=$dir/$(basename "$3" | cut -d- -f1)
    [ -e "$job" ] || : > "$job";;
  *"delete job "*) rm "$dir/$(echo "$5" | cut -d- -f1)";;
  *"get job "*)
    job=$dir/$(echo "$5" | cut -d- -f1)
    if [ -s "$job" ]; then
      case "$*" in *"$(cat "$job")"*) echo True;; esac
    elif [ -e "$job" ] && [ "${job##*/}" = "$(cat "$dir/fails" 2>/dev/null)" ]; then echo Failed > "$job"
    elif [ -e "$job" ]; then echo Complete > "$job"
    fi;;
esac
""")

        def run():
            (self.dir / "calls").write_text("")
            return subprocess.run([out / "scripts/run-pipeline.sh"], capture_output=True, text=True, check=False,
                                  env=env, timeout=60)

        (self.dir / "fails").write_text("step3")
        done = run()
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("step3-inference-test failed", done.stderr)
        self.assertIn("logs job/step3-inference-test", self.calls())
        self.assertEqual(re.findall(r"apply --filename \S+/(step\d)", self.calls()), ["step1", "step2", "step3"])
        self.assertNotIn("delete", self.calls())

        (self.dir / "fails").unlink()
        done = run()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("delete job step3-inference-test --wait=true", self.calls())
        self.assertEqual(self.calls().count("delete"), 1)
        self.assertEqual(re.findall(r"apply --filename \S+/(step\d)", self.calls()), ["step3", "step4", "step5"])

    def test_a_source_of_a_secret_that_fails_creates_no_secret(self):
        scripts = self.render() / "scripts"
        kubectl = """
case "$*" in
  *"get secret"*) [ -e "$dir/secret-$5" ];;
  *"create secret"*) name=$6; cat > "$dir/secret-$name";;
esac
"""
        for name, text in (("openssl", "exit 1\n"), ("openssl", "exit 0\n"), ("tandem", "exit 1\n"),
                           ("tandem", "exit 0\n")):
            with self.subTest(name=name, text=text):
                env = self.false_tools(kubectl=kubectl, **{
                    "openssl": "printf '%048d\\n' 7\n", "tandem": f"printf {TOKEN}\n", name: text})
                done = subprocess.run([scripts / "create-secrets.sh", "config.env"], capture_output=True, text=True,
                                      check=False, env=env)
                self.assertNotEqual(done.returncode, 0)
                written = {path.name for path in self.dir.glob("secret-*")}
                self.assertNotIn({"openssl": "secret-tandem-database", "tandem": "secret-huggingface-token"}[name],
                                 written)
        for path in self.dir.glob("secret-*"):
            path.unlink()
        env = self.false_tools(kubectl=kubectl, openssl="printf '%048d\\n' 7\n", tandem=f"printf {TOKEN}\n")
        subprocess.run([scripts / "create-secrets.sh", "config.env"], capture_output=True, check=True, env=env)
        key = "7".zfill(48)
        self.assertEqual({path.name: path.read_text() for path in self.dir.glob("secret-*")}, {
            "secret-tandem-database": key, "secret-huggingface-token": TOKEN,
            "secret-tandem-keys": f"api.keys={key}\nadmin.key={key}\n"})
        self.assertNotIn(TOKEN, self.calls())
        self.assertNotIn(key, self.calls())


class Launched(unittest.TestCase):
    """Objects of `tandem launch k8s`."""

    FLAGS = ("--image", "registry/tandem-trainer:1", "--workload", "sft-1", "--claim", "artifacts", "--mount",
             "/gcs/artifacts", "--queue", "long", "--token-secret", "huggingface-token", "--cpu", "8",
             "--memory", "64Gi", "--namespace", "tandem")

    def manifest(self, kind, *arguments):
        done = tandem("launch", "k8s", "spec.yaml", "steps=10", "--kind", kind, *self.FLAGS, *arguments)
        return yaml.safe_load(done.stdout)

    def check_job(self, spec):
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": spec}
        kubernetes_validate.validate(job, KUBERNETES, strict=True)

    def test_every_kind_has_the_fields_of_its_definition(self):
        for kind, nodes in (("jobset", 1), ("mpijob", 4), ("trainjob", 4)):
            with self.subTest(kind=kind):
                entry = self.manifest(kind, "--nodes", nodes, "--ranks-per-node", 2)
                unknown, pods, jobs = crds.faults_of(entry)
                self.assertEqual(unknown, [])
                for template in pods:
                    self.check_job({"template": template})
                for template in jobs:
                    self.check_job(template["spec"])
                self.assertEqual(len(pods) + len(jobs), {"jobset": 1, "mpijob": 2, "trainjob": 0}[kind])
                self.assertEqual(entry["metadata"]["labels"][crds.QUEUE_LABEL], "long")
                suspended = entry["spec"].get("runPolicy", entry["spec"])["suspend"]
                self.assertIs(suspended, True)

    def test_the_table_of_fields_finds_a_misspelt_one(self):
        entry = self.manifest("mpijob", "--nodes", 2)
        entry["spec"]["runPolicy"]["cleanPodsPolicy"] = "All"
        self.assertEqual(crds.faults_of(entry)[0], ["spec.runPolicy.cleanPodsPolicy"])

    def test_a_plain_job_obeys_the_schema(self):
        kubernetes_validate.validate(self.manifest("job"), KUBERNETES, strict=True)

    def test_the_mpirun_has_all_ranks(self):
        entry = self.manifest("mpijob", "--nodes", 4, "--ranks-per-node", 2)
        replicas = entry["spec"]["mpiReplicaSpecs"]
        command = replicas["Launcher"]["template"]["spec"]["containers"][0]["command"]
        self.assertEqual(command[:5], ["mpirun", "--bind-to", "none", "-n", "8"])
        self.assertEqual(command[-4:], ["/usr/bin/tandem", "train", "spec.yaml", "steps=10"])
        self.assertEqual(replicas["Worker"]["replicas"], 4)

    def test_the_words_of_xpk_work(self):
        command = ("python3 -m MaxText.sft.sft_trainer src/MaxText/configs/sft.yml run_name=sft-1 "
                   "base_output_directory=/gcs/artifacts model_name=gemma2-2b per_device_batch_size=1 steps=10 "
                   "profiler=xplane train_split=train_sft")
        done = tandem("launch", "k8s", "/etc/tandem/gemma2-ultrachat.yaml", "--cluster=c", "--project=p", "--zone=z",
                      "--docker-image=gcr.io/p/i", "--workload=sft-1", "--tpu-type=v6e-256", "--num-slices=2",
                      "--command", command)
        entry = yaml.safe_load(done.stdout)
        self.assertEqual(entry["metadata"]["name"], "sft-1")
        self.assertEqual(entry["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"], 2)
        words = entry["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]["command"]
        self.assertIn("base_output_directory=/gcs/artifacts", words)
        self.assertIn("--tpu-type has no effect here", done.stderr)
        token = tandem("launch", "k8s", "s.yaml", "--image=i", "--command", f"{command} hf_access_token={TOKEN}",
                       check=False)
        self.assertEqual(token.returncode, 2)
        self.assertNotIn(TOKEN, token.stdout + token.stderr)
        pathways = tandem("launch", "k8s", "s.yaml", "--image=i", "--command",
                          command + " enable_single_controller=True", check=False)
        self.assertIn("Pathways", pathways.stderr)

    def test_a_batch_script_is_a_valid_script(self):
        done = tandem("launch", "slurm", "spec.yaml", "--nodes", 2, "--option=--partition=long")
        subprocess.run(["sh", "-n"], input=done.stdout, text=True, check=True)
        self.assertIn("srun --mpi=pmix", done.stdout)

    def test_probe_and_local_print_what_they_are(self):
        probe = yaml.safe_load(tandem("launch", "probe").stdout)
        self.assertRegex(probe["sha256"], "^[0-9a-f]{64}$")
        self.assertRegex(probe["kernels"], r"^[a-z0-9]+(\+[a-z0-9]+)*$")
        done = tandem("launch", "local", "spec.yaml", "--ranks", 2)
        self.assertEqual(done.stdout, "'mpirun' '--bind-to' 'none' '-n' '2' 'tandem' 'train' 'spec.yaml'\n")
        done = tandem("launch", "local", "spec.yaml", "--token-file", "/run/token")
        self.assertEqual(done.stdout, "'env' 'HF_TOKEN_PATH=/run/token' 'tandem' 'train' 'spec.yaml'\n")


if __name__ == "__main__":
    BINARY = harness.BINARY = sys.argv.pop(1)
    unittest.main()
