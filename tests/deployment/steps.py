"""The five steps of the rendered pipeline, run here with the words and variables of their manifests."""

import http.client
import json
import os
import pathlib
import re
import subprocess
import sys

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import harness  # noqa: E402
from pipeline_case import PipelineCase  # noqa: E402

MANIFESTS = ("step1-convert-hf-to-maxtext", "step2-fine-tuning", "step3-inference-test",
             "step4-convert-maxtext-to-hf")
ENV = """\
PROJECT_ID=my-ml-project-123
REGION=us-east5
REPO_NAME=maxtext-demo
MODEL_NAME=gemma2-tiny
CHECKPOINT_ID=20250928-190725
STEPS=4
MOUNT_DIR={root}/mount
MODEL_PATH={model}
TOKENIZER_PATH={model}
DATASET_PATH={chats}
"""


class PipelineSteps(PipelineCase):
    def setUp(self):
        super().setUp()
        # The preset trains on rows of 1,024 tokens.
        config = json.loads((self.model / "config.json").read_text())
        (self.model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 1024}))
        self.out = self.path / "out"
        (self.root / "mount").mkdir()
        config = self.path / "config.env"
        config.write_text(ENV.format(root=self.root, model=self.model, chats=self.chats))
        subprocess.run([harness.BINARY, "deploy", "render", "--env", config, "--out", self.out],
                       check=True, capture_output=True)
        self.folder = self.out / "kubernetes" / "pipeline"
        maps = yaml.safe_load((self.folder / "kustomization.yaml").read_text())["configMapGenerator"]
        self.maps = {entry["name"]: entry for entry in maps}

    def mounted(self, pod, container):
        """Place in the container -> the same place here, for its volumes of config maps and secrets."""
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        places = {"/usr/bin/tandem": str(pathlib.Path(harness.BINARY).resolve())}
        for mount in container["volumeMounts"]:
            volume = volumes[mount["name"]]
            here = self.path / "volumes" / mount["name"]
            here.mkdir(parents=True, exist_ok=True)
            for item in volume.get("configMap", {}).get("items", []):
                target = here / item["path"]
                target.parent.mkdir(exist_ok=True)
                target.write_text((self.folder / item["key"]).read_text())
            if "persistentVolumeClaim" in volume and volume["persistentVolumeClaim"]["claimName"] == "artifacts":
                self.assertEqual(mount["mountPath"], str(self.root / "mount"))
                here = self.root / "mount"
            places[mount["mountPath"]] = str(here)
        return places

    def words(self, pod, container):
        """The command of a container, with the paths of this machine."""
        places = self.mounted(pod, container)
        pattern = "|".join(map(re.escape, sorted(places, key=len, reverse=True)))
        pattern = f"(?<![^=])({pattern})(?=/|$)"
        return [re.sub(pattern, lambda match: places[match[1]], word)
                for word in container["command"] + container["args"]]

    def run_container(self, pod, container):
        variables = {}
        for source in container.get("envFrom", []):
            literals = self.maps[source["configMapRef"]["name"]]["literals"]
            variables.update(entry.split("=", 1) for entry in literals)
        variables.update((entry["name"], entry["value"]) for entry in container.get("env", []))
        done = subprocess.run(self.words(pod, container), cwd=self.path, capture_output=True, text=True, check=False,
                              timeout=harness.PATIENCE_S, env={
                                  "PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(self.path / "cache"),
                                  **variables})
        self.assertEqual(done.returncode, 0, f"{container['name']}: {done.stdout}{done.stderr}")
        return done.stdout

    def ask(self, address, path, body=None):
        connection = http.client.HTTPConnection(*address, timeout=harness.PATIENCE_S)
        connection.request("POST" if body else "GET", path, json.dumps(body) if body else None,
                           {"Authorization": "Bearer secret", "Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        self.assertEqual(answer.status, 200, text)
        return json.loads(text)

    def serve_step(self):
        documents = yaml.safe_load_all((self.folder / "step5-serving.yaml").read_text())
        pod = next(entry for entry in documents if entry["kind"] == "Deployment")["spec"]["template"]["spec"]
        words = self.words(pod, pod["containers"][0])
        for name in ("api.keys", "admin.key"):
            (self.path / "volumes" / "keys" / name).write_text("secret\n" if name == "api.keys" else "admin\n")
        # A free port of the loopback interface; all else is the manifest's.
        words = [re.sub(r"^--host=.*", "--host=127.0.0.1", re.sub(r"^--port=.*", "--port=0", word)) for word in words]
        log = open(self.path / "serve.log", "wb")
        self.addCleanup(log.close)
        server = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True,
                                  env={"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(self.path / "cache")})
        self.addCleanup(server.stdout.close)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        match = re.fullmatch(r"listening on http://([\d.]+):(\d+)\n", server.stdout.readline())
        self.assertTrue(match, (self.path / "serve.log").read_text())
        return match[1], int(match[2])

    def test_the_commands_of_all_manifests_run_one_after_another(self):
        ran = []
        for name in MANIFESTS:
            job = yaml.safe_load((self.folder / f"{name}.yaml").read_text())
            pod = job["spec"]["template"]["spec"]
            for container in pod.get("initContainers", []) + pod["containers"]:
                self.run_container(pod, container)
                ran.append(container["name"])
        self.assertEqual(len(ran), 5)
        mount = self.root / "mount"
        self.assertTrue((mount / "finetuned-hf-models/gemma2-tiny/model.safetensors").exists())
        said = (mount / "pipelines/20250928-190725/jobs/test/text.txt").read_text()

        address = self.serve_step()

        self.assertIn("gemma2-tiny", [model["id"] for model in self.ask(address, "/v1/models")["data"]])
        answer = self.ask(address, "/v1/completions",
                          {"model": "gemma2-tiny", "prompt": "I love to", "max_tokens": 8, "temperature": 0})
        text = answer["choices"][0]["text"]
        self.assertTrue(text)
        self.assertTrue(said.removeprefix("I love to").startswith(text), (said, text))
