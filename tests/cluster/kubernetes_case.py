"""A false Kubernetes for tests: an API server for kubectl whose jobs run as processes of this machine."""

import http.server
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import threading
import urllib.parse

NAMESPACE = "tandem"
JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
contexts: [{{name: c, context: {{cluster: c, user: u, namespace: {namespace}}}}}]
users: [{{name: u, user: {{}}}}]
current-context: c
"""
# What kubectl asks before it sends an object: the groups, and whether the server checks fields itself.
DISCOVERY = {
    "/version": {"major": "1", "minor": "31", "gitVersion": "v1.31.0"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [
        {"name": "batch", "versions": [{"groupVersion": "batch/v1", "version": "v1"}],
         "preferredVersion": {"groupVersion": "batch/v1", "version": "v1"}}]},
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": [
        {"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod", "verbs": ["get", "list", "delete"]}]},
    "/apis/batch/v1": {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "batch/v1", "resources": [
        {"name": "jobs", "singularName": "job", "namespaced": True, "kind": "Job",
         "verbs": ["create", "get", "list", "delete"]}]},
    "/openapi/v3": {"paths": {"apis/batch/v1": {"serverRelativeURL": "/openapi/v3/apis/batch/v1?hash=1"}}},
    "/openapi/v3/apis/batch/v1": {
        "openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "v1.31.0"}, "components": {"schemas": {}},
        "paths": {f"/apis/batch/v1/namespaces/{{namespace}}/jobs/{{name}}": {"patch": {
            "x-kubernetes-group-version-kind": {"group": "batch", "version": "v1", "kind": "Job"},
            "parameters": [{"name": "fieldValidation", "in": "query",
                            "schema": {"type": "string", "uniqueItems": True}}],
            "responses": {}}}}},
}


def missing():
    return [name for name in ("kubectl",) if not shutil.which(name)]


class Job:
    """An object and its pod, which is a process."""

    def __init__(self, entry, program, env):
        self.entry = entry
        self.name = entry["metadata"]["name"]
        self.is_deleted = False
        self.process = None
        self.program, self.env = program, env

    def start(self):
        container = self.entry["spec"]["template"]["spec"]["containers"][0]
        words = [self.program, *container["command"][1:], *container["args"]]
        self.process = subprocess.Popen(words, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)

    def end(self, number):
        """Ends the pod's process; children of it end with their job's own rules."""
        if self.process and self.process.poll() is None:
            self.process.send_signal(number)

    def is_running(self):
        return self.process is not None and self.process.poll() is None

    def object(self):
        status = {}
        if self.is_running():
            status["ready"] = 1
        elif self.process is not None:
            status["conditions"] = [{"type": "Complete" if self.process.returncode == 0 else "Failed",
                                     "status": "True"}]
        metadata = dict(self.entry["metadata"])
        if self.is_deleted:
            metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        return {**self.entry, "metadata": metadata, "status": status}


class Kubernetes:
    """`env` has KUBECONFIG for kubectl. While `is_full`, new jobs wait. While `is_down`, answers are 503."""

    def __init__(self, folder, program, env):
        self.jobs, self.created, self.lock = {}, [], threading.Lock()
        self.is_full = self.is_down = False
        self.program, self.pod_env = program, env
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                path, _, query = self.path.partition("?")
                status, entry = owner.answer(self.command, path, dict(urllib.parse.parse_qsl(query)),
                                             json.loads(body) if body else {})
                text = json.dumps(entry).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_DELETE = answer

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        config = pathlib.Path(folder) / "kubeconfig"
        config.write_text(KUBECONFIG.format(port=self.server.server_address[1], namespace=NAMESPACE))
        self.env = {**os.environ, "KUBECONFIG": str(config)}

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
        for job in self.jobs.values():
            job.end(signal.SIGKILL)
            if job.process:
                job.process.wait()

    @staticmethod
    def failure(code, reason):
        return code, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code,
                      "message": reason}

    def answer(self, method, path, query, body):
        if self.is_down:
            return self.failure(503, "ServiceUnavailable")
        if path in DISCOVERY:
            return 200, DISCOVERY[path]
        with self.lock:
            self.collect()
            if path == JOBS and method == "POST":
                return self.create(body)
            if path == JOBS:
                return 200, {"kind": "JobList", "apiVersion": "batch/v1", "metadata": {},
                             "items": [job.object() for job in self.jobs.values() if self.is_selected(job, query)]}
            if path == PODS:
                pods = [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": job.name, "namespace": NAMESPACE}}
                        for job in self.jobs.values()
                        if job.is_running() and query.get("labelSelector") == f"job-name={job.name}"]
                return 200, {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods}
            match = re.fullmatch(f"({JOBS}|{PODS})/([^/]+)", path)
            job = self.jobs.get(match[2]) if match else None
            if job is None:
                return self.failure(404, "NotFound")
            if method == "DELETE":
                # A job's object stays until its pod has ended: the deletion is in the foreground.
                job.is_deleted = job.is_deleted or match[1] == JOBS
                job.end(signal.SIGKILL if match[1] == PODS else signal.SIGTERM)
                self.collect()
            return 200, job.object()

    def create(self, entry):
        metadata = entry["metadata"]
        metadata.setdefault("name", f"{metadata.get('generateName', '')}{len(self.created):05}")
        metadata.update({"namespace": NAMESPACE, "uid": str(len(self.created))})
        job = Job(entry, self.program, self.pod_env)
        self.jobs[job.name] = job
        self.created.append(entry)
        if not self.is_full:
            job.start()
        return 201, entry

    @staticmethod
    def is_selected(job, query):
        wanted = re.fullmatch(r"(\S+) in \((.+)\)", query.get("labelSelector", ""))
        return not wanted or job.entry["metadata"].get("labels", {}).get(wanted[1]) in wanted[2].split(",")

    def collect(self):
        for job in list(self.jobs.values()):
            if job.is_deleted and not job.is_running():
                del self.jobs[job.name]

    def names(self):
        with self.lock:
            self.collect()
            return sorted(self.jobs)
