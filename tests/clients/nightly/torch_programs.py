"""guidellm and `vllm bench serve`, which import torch at start. Both measure the embedded model."""

import json
import os
import pathlib
import subprocess

from packages import python_beside, python_with

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
MODEL_FOLDER = ROOT / "config" / "models" / "tandem-stories"
REQUESTS = 40
TOKENS = 24
LIMIT_S = 600
# No package may ask another service. They use the machine's processors sparingly.
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
           "HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9",
           "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "OMP_NUM_THREADS": "1"}


def torch_python(context):
    """An interpreter with torch and transformers: the given one, or several GB of packages."""
    if context.torch:
        return context.torch
    requirements = ROOT / "tests" / "transformers" / "requirements.txt"
    return python_with(context.cache / "torch", requirements, builds=True, limit_s=3600)


def measure(command, scratch):
    environment = dict(os.environ, **OFFLINE, HF_HOME=str(scratch / "hf"), HOME=str(scratch))
    done = subprocess.run([str(word) for word in command], cwd=scratch, env=environment,
                          capture_output=True, text=True, timeout=LIMIT_S, check=False)
    print(done.stdout[-3000:])
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stderr[-4000:]}"


def run_guidellm(context):
    python = python_beside(context.cache / "guidellm", HERE / "guidellm.txt",
                           torch_python(context))
    for form in ("/v1/chat/completions", "/v1/completions"):
        scratch = context.scratch / form.replace("/", "-")
        scratch.mkdir()
        report = scratch / "report.json"
        backend = f"kind=openai_http,target={context.url},model=tandem-stories"
        measure([python.parent / "guidellm", "run", "--disable-progress",
                 "--backend", f"{backend},request_format={form}",
                 "--tokenizer", f"kind=huggingface_auto,model={MODEL_FOLDER}",
                 "--data", f"kind=synthetic_text,prompt_tokens=64,output_tokens={TOKENS}",
                 "--profile", "kind=concurrent,streams=4",
                 "--constraint", f"kind=max_requests,count={REQUESTS}",
                 "--output", f"kind=json,path={report}"], scratch)
        (benchmark,) = json.loads(report.read_text())["benchmarks"]
        requests = benchmark["requests"]
        assert len(requests["successful"]) == REQUESTS, requests
        assert not requests["errored"], requests["errored"][0]
        for request in requests["successful"]:
            assert request["output_tokens"] == TOKENS, request


def run_vllm_bench(context):
    # Alone: its dependencies are GPU libraries. The file names what its benchmark imports.
    python = python_beside(context.cache / "vllm_bench", HERE / "vllm_bench.txt",
                           torch_python(context), alone=True)
    for backend, route in (("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")):
        scratch = context.scratch / backend
        scratch.mkdir()
        measure([python.parent / "vllm", "bench", "serve", "--backend", backend,
                 "--endpoint", route, "--base-url", context.url, "--model", "tandem-stories",
                 "--tokenizer", MODEL_FOLDER, "--dataset-name", "random", "--ignore-eos",
                 "--random-input-len", "64", "--random-output-len", TOKENS,
                 "--num-prompts", REQUESTS, "--max-concurrency", "4", "--disable-tqdm",
                 "--save-result", "--save-detailed", "--result-filename", "report.json"], scratch)
        report = json.loads((scratch / "report.json").read_text())
        assert report["completed"] == REQUESTS, report
        assert report["failed"] == 0, report["errors"]
        assert report["output_lens"] == [TOKENS] * REQUESTS, report["output_lens"]
