"""A PostgreSQL of one's own, in a temporary directory, for the tests of replicas.

PostgreSQL refuses to run as root; root starts it as `nobody`.
"""

import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import unittest


def programs():
    """The directory of Debian's newest PostgreSQL."""
    found = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    if not found:
        raise unittest.SkipTest("PostgreSQL is not installed (package postgresql)")
    return found[-1].parent


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Postgres:
    PASSWORD = "a-secret-of-the-test"

    def __init__(self):
        self.bin = programs()
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="tandem-postgres-"))
        self.port = free_port()
        self.url = f"postgres://tandem@127.0.0.1:{self.port}/postgres"
        self.user = []
        if os.geteuid() == 0:
            self.user = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
            shutil.chown(self.directory, "nobody", "nogroup")
        password = self.directory / "password"
        password.write_text(self.PASSWORD + "\n")
        password.chmod(0o644)
        self.run("initdb", "-D", self.directory / "data", "-U", "tandem", "--no-sync",
                 "-A", "scram-sha-256", "--pwfile", password)
        self.start()

    def run(self, program, *arguments):
        subprocess.run([*self.user, self.bin / program, *arguments], check=True, cwd="/",
                       stdout=subprocess.DEVNULL, timeout=60)

    def start(self):
        self.run("pg_ctl", "-D", self.directory / "data", "-w", "-l", self.directory / "log", "-o",
                 f"-p {self.port} -c listen_addresses=127.0.0.1 "
                 f"-c unix_socket_directories={self.directory} -c fsync=off", "start")

    def stop(self, mode="fast"):
        self.run("pg_ctl", "-D", self.directory / "data", "-w", "-m", mode, "stop")

    def query(self, sql):
        """The rows as lines of text."""
        done = subprocess.run([self.bin / "psql", "-qAtX", "-c", sql, self.url], check=True,
                              capture_output=True, text=True, timeout=60,
                              env={**os.environ, "PGPASSWORD": self.PASSWORD})
        return done.stdout.splitlines()

    def close(self):
        try:
            self.stop("immediate")
        except subprocess.CalledProcessError:
            pass  # a test has stopped it
        shutil.rmtree(self.directory, ignore_errors=True)
