"""Several servers with one database and one data directory."""

import os
import pathlib
import re
import subprocess
import sys
import time

import postgres

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import harness  # noqa: E402
from fine_tuning_test import chats  # noqa: E402, F401 (for the tests)
from job_case import ENDED, JobCase  # noqa: E402, F401


class Replica(harness.Server):
    """As harness.Server, but with a data directory and a log that the caller chooses."""

    def __init__(self, folder, number, database, port, *arguments, data="data", variables=None):
        environment = {**os.environ, "TANDEM_ADMIN_KEY": harness.ADMIN_KEY,
                       "XDG_CACHE_HOME": str(folder / "cache"), **(variables or {})}
        self.data = folder / data
        environment.pop("PGPASSWORD", None)
        self.log_path = folder / f"server-{number}.log"
        self.log = open(self.log_path, "ab")
        secret = folder / "password"
        secret.write_text(database.PASSWORD + "\n")
        self.process = subprocess.Popen(
            [harness.BINARY, "serve", "--port", str(port), "--data-dir", str(self.data),
             "--database", database.url, "--database-password-file", str(secret), *arguments],
            stdout=subprocess.PIPE, stderr=self.log, env=environment, text=True)
        line = self.process.stdout.readline()
        match = re.fullmatch(r"listening on https?://([\d.]+):(\d+)\n", line)
        if not match:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
            self.log.close()
            raise AssertionError(f"no ready line, got {line!r}; log:\n{self.log_path.read_text()}")
        self.address = (match[1], int(match[2]))


class ReplicasCase(JobCase):
    def setUp(self):
        self.database = postgres.Postgres()
        self.addCleanup(self.database.close)
        super().setUp()

    def replica(self, *arguments, port=0):
        server = Replica(self.path, len(self.servers), self.database, port, *arguments)
        self.servers.append(server)
        return server

    def within(self, seconds, what, condition):
        """Waits for the condition; fails if it took longer."""
        begin = time.monotonic()
        self.wait_until(what, condition)
        took = time.monotonic() - begin
        self.assertLessEqual(took, seconds, f"{what}: {took:.1f} s")
        return took

    def models(self, server):
        return {model["id"] for model in server.request("GET", "/v1/models")[2]["data"]}

    def supervisor(self):
        """The replica with the lease of the jobs, by the last line of each log."""
        holders = []
        for server in self.servers:
            if server.process.poll() is not None:
                continue
            lines = [line for line in server.log_path.read_text().splitlines()
                     if "job_supervision_" in line]
            if lines and "job_supervision_taken" in lines[-1]:
                holders.append(server)
        return holders[0] if holders else None
