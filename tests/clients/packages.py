"""Installs published packages beside the program, once."""

import hashlib
import pathlib
import shutil
import subprocess
import sys

INSTALL_LIMIT_S = 300


class Unavailable(Exception):
    """A language whose packages cannot be installed here; the text gives the reason in one line."""


def run_quietly(command, limit_s=INSTALL_LIMIT_S, **options):
    """Raises Unavailable with the last output line, unless the command exits with 0."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=limit_s, **options)
    except (OSError, subprocess.TimeoutExpired) as fault:
        raise Unavailable(f"{pathlib.Path(command[0]).name}: {fault}") from fault
    if done.returncode != 0:
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        raise Unavailable(f"{pathlib.Path(command[0]).name} exited with {done.returncode}: "
                          f"{lines[-1][:200] if lines else 'no output'}")


def installed(folder, key, install):
    """Returns `folder`, filled by `install(folder)` unless it has a finished install with this key."""
    stamp = folder / "installed"
    if stamp.exists() and stamp.read_text() == key:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    print(f"installing {folder.name} packages into {folder}", flush=True)
    install(folder)
    stamp.write_text(key)
    return folder


def key_of(*parts):
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part if isinstance(part, bytes) else str(part).encode())
    return digest.hexdigest()


def pip_install(python, *arguments, limit_s=INSTALL_LIMIT_S):
    run_quietly([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                 "--retries", "1", "--timeout", "30", *arguments], limit_s)


def python_with(folder, requirements, builds=False, limit_s=INSTALL_LIMIT_S):
    """The interpreter of a virtual environment with these requirements.

    `builds`: packages without wheels may be built, which runs their code.
    """
    def install(target):
        run_quietly([sys.executable, "-m", "venv", str(target / "venv")])
        pip_install(target / "venv" / "bin" / "python",
                    *([] if builds else ["--only-binary", ":all:"]), "-r", str(requirements),
                    limit_s=limit_s)

    installed(folder, key_of(requirements.read_bytes(), sys.version), install)
    return folder / "venv" / "bin" / "python"


def python_beside(folder, requirements, other, alone=False):
    """An environment with these requirements that also sees the packages of `other`, an interpreter.

    `alone`: only the named packages are installed, without their dependencies.
    """
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    paths = subprocess.run([str(other), "-c", where], capture_output=True, text=True,
                           check=True).stdout

    def install(target):
        run_quietly([str(other), "-m", "venv", str(target / "venv")])
        python = target / "venv" / "bin" / "python"
        (packages,) = (target / "venv" / "lib").glob("python*/site-packages")
        (packages / "other.pth").write_text(paths)
        pip_install(python, *(["--no-deps"] if alone else []), "-r", str(requirements),
                    limit_s=1800)

    installed(folder, key_of(requirements.read_bytes(), paths, alone), install)
    return folder / "venv" / "bin" / "python"


def node_modules(folder, sources, npm, environment=None, with_scripts=()):
    """Installs what package.json and package-lock.json in `sources` name.

    Only the packages `with_scripts` run their install scripts.
    """
    files = [sources / "package.json", sources / "package-lock.json"]

    def install(target):
        for file in files:
            shutil.copy(file, target)
        run_quietly([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1",
                     "--fetch-retry-mintimeout=1000", "--fetch-timeout=30000"], cwd=target,
                    env=environment)
        for package in with_scripts:
            run_quietly([npm, "rebuild", "--foreground-scripts", package], cwd=target,
                        env=environment)

    return installed(folder, key_of(*with_scripts, *[file.read_bytes() for file in files]), install)
