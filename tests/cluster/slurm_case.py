"""A real Slurm on this machine for tests: a controller and two nodes, without authentication between them."""

import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile
import time

PATIENCE_S = 60
NODES = ("node1", "node2")
CPUS = 4  # of each, whatever the machine has


def missing():
    """The programs of Slurm that are not installed."""
    return [name for name in ("slurmctld", "slurmd", "sbatch", "squeue", "scancel", "sinfo", "scontrol")
            if not shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")]


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for entry in sockets:
        entry.bind(("127.0.0.1", 0))
    ports = [entry.getsockname()[1] for entry in sockets]
    for entry in sockets:
        entry.close()
    return ports


class Slurm:
    """Starts at construction; `stop` ends both daemons. `env` has SLURM_CONF for its tools."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="tandem-slurm-")
        self.dir = pathlib.Path(self.folder)
        os.chmod(self.folder, 0o755)
        for name in ("state", "run", *(f"tmp-{node}" for node in NODES)):
            (self.dir / name).mkdir()
        self.config = self.dir / "slurm.conf"
        host = socket.gethostname().split(".")[0]
        controller, *ports = free_ports(1 + len(NODES))
        nodes = "\n".join(f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={CPUS} State=UNKNOWN"
                          for node, port in zip(NODES, ports))
        self.config.write_text(f"""\
ClusterName=tandem
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CryptoType=crypto/openssl
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SlurmctldPort={controller}
SlurmctldPidFile={self.dir}/run/slurmctld.pid
SlurmdPidFile={self.dir}/run/%n.pid
StateSaveLocation={self.dir}/state
SlurmdSpoolDir={self.dir}/spool-%n
TmpFS={self.dir}/tmp-%n
SlurmctldLogFile={self.dir}/slurmctld.log
SlurmdLogFile={self.dir}/%n.log
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000
KillWait=5
MinJobAge=300
ReturnToService=2
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
{nodes}
PartitionName=long Nodes={",".join(NODES)} Default=YES OverSubscribe=YES:4 MaxTime=INFINITE State=UP
""")
        # Both nodes are this host, so its shared memory would serve both.
        self.env = {**os.environ, "SLURM_CONF": str(self.config), "OMPI_MCA_btl": "self,tcp",
                    "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}
        self.daemons = []
        try:
            for command in (["slurmctld", "-D", "-f", str(self.config)],
                            *(["slurmd", "-D", "-N", node, "-f", str(self.config)] for node in NODES)):
                self.daemons.append(subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL,
                                                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            self.wait_until_idle()
        except BaseException:
            self.stop()
            raise

    def wait_until_idle(self):
        deadline = time.monotonic() + PATIENCE_S
        while True:
            done = subprocess.run(["sinfo", "--noheader", "--Node", "--format=%T"], env=self.env, capture_output=True,
                                  text=True, check=False)
            if set(done.stdout.split()) == {"idle"}:
                return
            if time.monotonic() > deadline:
                raise AssertionError(f"Slurm does not start: {done.stdout}{done.stderr}\n{self.logs()}")
            time.sleep(0.2)

    def logs(self):
        return "\n".join(path.read_text()[-3000:] for path in sorted(self.dir.glob("*.log")))

    def tool(self, *command):
        """The output of one of Slurm's tools."""
        return subprocess.run(command, env=self.env, capture_output=True, text=True, check=True).stdout

    def queue(self):
        return self.tool("squeue", "--noheader", "--format=%i %j %T").split("\n")[:-1]

    def state(self, job):
        """The state of a job that has been submitted, such as COMPLETED."""
        return re.search(r"JobState=(\w+)", self.tool("scontrol", "show", "job", job))[1]

    def stop(self):
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in reversed(self.daemons):
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
