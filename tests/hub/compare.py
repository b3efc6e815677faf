"""`compare.py BINARY`; `run` starts it with the Python that has huggingface_hub."""

import json
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
sys.dont_write_bytecode = True

import harness  # noqa: E402
from hub_test import COMMIT, MIB, HubCase, large, sha256  # noqa: E402

PROGRAM = """
import json, sys
import filelock, huggingface_hub
todo = json.loads(sys.argv[1])
ignored = ["*.md", "*.py", "*.yaml"]
if todo == "snapshot":
    print(huggingface_hub.snapshot_download("org/name", ignore_patterns=ignored))
elif todo == "local":
    print(huggingface_hub.snapshot_download("org/name", ignore_patterns=ignored,
                                            local_files_only=True))
    print(huggingface_hub.hf_hub_download("org/name", "model.safetensors", local_files_only=True))
elif todo == "scan":
    info = huggingface_hub.scan_cache_dir()
    assert not info.warnings, info.warnings
    (repo,) = info.repos
    (revision,) = repo.revisions
    print(repo.repo_id, revision.commit_hash, sorted(revision.refs), len(revision.files))
else:
    with filelock.FileLock(todo, timeout=0.2):
        print("locked", flush=True)
        sys.stdin.read()
"""


class SharedCache(HubCase):
    def library(self, hub, todo, code=0):
        done = subprocess.run([sys.executable, "-c", PROGRAM, json.dumps(todo)],
                              env=self.library_environment(hub), capture_output=True, text=True,
                              stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout.split("\n")[:-1]

    def library_environment(self, hub):
        return self.environment(hub, HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_TELEMETRY="1",
                                HF_HUB_DISABLE_PROGRESS_BARS="1")

    def fetched(self, hub):
        return [entry for entry in hub.log if entry[0] == "GET" and "/api/" not in entry[1]]

    def test_what_the_library_fetched_is_used(self):
        hub = self.hub()
        (path,) = self.library(hub, "snapshot")
        n_fetched = len(self.fetched(hub))
        self.assertGreater(n_fetched, 0)
        self.assertEqual(self.pull(hub)[0], path)
        self.assertEqual(self.pull(hub, HF_HUB_OFFLINE="1")[0], path)
        self.assertEqual(len(self.fetched(hub)), n_fetched)
        self.expect_snapshot(hub, path)

    def test_what_we_fetched_is_used_by_the_library(self):
        hub = self.hub()
        path, _ = self.pull(hub)
        n_fetched = len(self.fetched(hub))
        self.assertEqual(self.library(hub, "snapshot"), [path])
        self.assertEqual(len(self.fetched(hub)), n_fetched)
        self.assertEqual(self.library(hub, "local"), [path, path + "/model.safetensors"])
        self.assertEqual(self.library(hub, "scan"), [f"org/name {COMMIT} ['main'] 6"])

    def test_the_locks_are_the_same(self):
        hub = self.hub(large(8))
        hub.bytes_per_s = 4 * MIB
        lock = self.home / "hub" / ".locks" / "models--org--name" / (
            sha256(hub.files["model.safetensors"]) + ".lock")
        process = self.start(hub)
        self.wait_for("something has arrived", lambda: self.incomplete_bytes() > 0)
        self.library(hub, str(lock), code=1)
        _, log = process.communicate(timeout=harness.PATIENCE_S)
        self.assertEqual(process.returncode, 0, log)

        for blob in self.folder.glob("blobs/*"):
            blob.unlink()
        hub.bytes_per_s = None
        with subprocess.Popen([sys.executable, "-c", PROGRAM, json.dumps(str(lock))], text=True,
                              env=self.library_environment(hub), stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE) as holder:
            self.assertEqual(holder.stdout.readline(), "locked\n")
            process = self.start(hub)
            self.wait_for("the small file is there",
                          lambda: len(list(self.folder.glob("blobs/*"))) > 0)
            self.assertIsNone(process.poll())
            self.assertFalse((self.folder / "blobs" / lock.stem).exists())
            holder.stdin.close()
        _, log = process.communicate(timeout=harness.PATIENCE_S)
        self.assertEqual(process.returncode, 0, log)
        self.assertIn("another process downloads this file", log)
        self.expect_snapshot(hub)


if __name__ == "__main__":
    harness.BINARY = sys.argv[1]
    unittest.main(argv=sys.argv[:1] + sys.argv[2:], verbosity=2)
