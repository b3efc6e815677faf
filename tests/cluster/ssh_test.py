#!/usr/bin/env python3
"""`tandem launch ssh` over a real sshd of this machine under two names. `ssh_test.py BINARY [unittest arguments]`.

Exit code 77: sshd is not installed.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

from cluster_case import ClusterCase, free_port, harness, processes_that_train

SKIP_CODE = 77
SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
SERVER = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {dir}/host
AuthorizedKeysFile {dir}/user.pub
StrictModes no
UsePAM no
PidFile none
PermitRootLogin yes
Subsystem sftp internal-sftp
"""
CLIENT = """\
Host alpha beta
  HostName 127.0.0.1
  Port {port}
  IdentityFile {dir}/user
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
"""


class Ssh(ClusterCase):
    STEPS = 12

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = cls.folder / "ssh"
        folder.mkdir()
        port = free_port()
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        (folder / "sshd_config").write_text(SERVER.format(port=port, dir=folder))
        (folder / "client").write_text(CLIENT.format(port=port, dir=folder))
        # ssh reads its settings from the home directory of the user, which a test must not change.
        for tool in ("ssh", "scp"):
            script = folder / tool
            script.write_text(f'#!/bin/sh\nexec {shutil.which(tool)} -F {folder}/client "$@"\n')
            script.chmod(0o755)
        if os.getuid() == 0:
            os.makedirs("/run/sshd", exist_ok=True)  # sshd's empty directory
        daemon = subprocess.Popen([SSHD, "-D", "-f", str(folder / "sshd_config")], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        cls.addClassCleanup(daemon.wait)
        cls.addClassCleanup(daemon.kill)
        # Both names are this host, so its shared memory would serve both.
        cls.environment = {**cls.environment, "PATH": f"{folder}:{os.environ['PATH']}", "OMPI_MCA_btl": "self,tcp",
                           "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        deadline = time.monotonic() + harness.PATIENCE_S
        while subprocess.run([folder / "ssh", "alpha", "true"], stderr=subprocess.DEVNULL, check=False).returncode:
            if time.monotonic() > deadline:
                raise AssertionError("sshd does not start")
            time.sleep(0.1)

    def words(self, name, *more):
        return [str(self.program()), "launch", "ssh", str(self.spec), f"run_name={name}", "world_invariant=2", *more,
                "--hosts", "alpha,beta", "--dir", str(self.folder / "logs" / name), "--submit"]

    @staticmethod
    def program():
        return pathlib.Path(harness.BINARY).resolve()

    def test_two_hosts_have_the_bits_of_one_process_and_leave_their_output_here(self):
        self.run_alone("one", "world_invariant=2")
        hosts = self.folder / "hosts.txt"
        hosts.write_text("# two names of this machine\nalpha\nbeta\n")
        words = self.words("two")
        words[words.index("alpha,beta")] = str(hosts)

        output = self.finish(words)

        self.assertIn("2 ranks share each step", output)
        self.assertEqual(self.losses("two"), self.losses("one"))
        self.assertEqual(self.weights("two"), self.weights("one"))
        pulled = sorted((self.folder / "logs" / "two" / "ranks").rglob("stdout"))
        self.assertEqual(len(pulled), 2)
        self.assertIn("completed step: 11,", pulled[0].read_text())

    def test_the_death_of_a_rank_ends_all_and_the_same_command_resumes(self):
        run = subprocess.Popen(self.words("killed", "steps=400"), env=self.environment,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(self.end, run)
        self.wait_for_step(run, "killed", 8)
        ranks = processes_that_train("run_name=killed")
        os.kill(ranks[-1], signal.SIGKILL)
        begin = time.monotonic()
        self.assertEqual(run.wait(harness.PATIENCE_S), 75)
        self.assertLess(time.monotonic() - begin, 10)
        for rank in ranks:
            self.assertFalse(pathlib.Path(f"/proc/{rank}/exe").exists(), "a rank lives on")
        done = max(self.losses("killed"))

        self.finish(self.words("killed", f"steps={done + 5}"))

        self.assertEqual(max(self.losses("killed")), done + 4)

    def test_another_program_on_a_host_is_named(self):
        far = self.folder / "far" / "tandem"
        far.parent.mkdir()
        far.write_text("#!/bin/sh\necho '" + json.dumps({"version": "0", "sha256": "0", "kernels": "x"}) + "'\n")
        far.chmod(0o755)
        output = self.finish([*self.words("other"), "--program", str(far)], code=1)
        for host in ("alpha", "beta"):
            self.assertIn(f"{host}: version is '0' and not ", output)
        self.assertFalse((self.folder / "other").exists())

    def test_sync_replaces_program_and_spec_also_where_they_come_from(self):
        program, spec = self.folder / "near" / "tandem", self.folder / "near" / "spec.yaml"
        program.parent.mkdir()
        shutil.copy(self.program(), program)
        shutil.copy(self.program().parent / "tandem_mpi.so", program.parent)
        spec.write_bytes(self.spec.read_bytes())
        before = {path.name: (path.read_bytes(), path.stat().st_mode) for path in program.parent.iterdir()}
        words = [*self.words("synced"), "--program", str(program), "--sync"]
        words[0] = str(program)
        words[3] = str(spec)

        self.finish(words)

        self.assertEqual(len(self.losses("synced")), self.STEPS)
        self.assertEqual({path.name: (path.read_bytes(), path.stat().st_mode) for path in program.parent.iterdir()},
                         before)

    def test_a_host_that_does_not_answer_is_named(self):
        words = self.words("down")
        words[words.index("alpha,beta")] = "alpha,gamma.invalid"
        self.assertIn("gamma.invalid: could not run", self.finish(words, code=1))


if __name__ == "__main__":
    if not SSHD:
        print("SKIPPED: not installed: sshd")
        sys.exit(SKIP_CODE)
    harness.main()
