"""A fresh Debian 12, made once by debootstrap and kept as an archive under the build folder."""

import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile

import support
from support import run

# By default the one that debootstrap knows.
MIRROR = os.environ.get("TANDEM_DEBIAN_MIRROR", "")
# What minimal systems lack and the package needs, besides the libraries.
TOOLS = {"adduser", "init-system-helpers"}


def why_not():
    """Why no root can be made here; empty if one can."""
    if not support.is_root():
        return "needs root"
    if os.environ.get("TANDEM_OFFLINE") == "1":
        return "TANDEM_OFFLINE=1"
    if not shutil.which("debootstrap"):
        return "needs debootstrap"
    return ""


def library_packages(program):
    """Debian's packages of the libraries that a program loads."""
    files = [line.split()[2] for line in run("ldd", program).splitlines() if "=>" in line]
    files = [str(pathlib.Path(file).resolve()) for file in files]
    # Packages made before /lib moved into /usr own their files under the old name.
    names = [*files, *(file.removeprefix("/usr") for file in files)]
    found = subprocess.run(["dpkg-query", "--search", *names], capture_output=True, text=True, check=False)
    return {line.split(":")[0] for line in found.stdout.splitlines()}


def unpack(folder, release="bookworm", packages=frozenset(), mirror=MIRROR, options=()):
    """Makes a root of a release of Debian (or Ubuntu) in a new folder. `options` are debootstrap's."""
    names = ",".join(sorted(packages))
    version = hashlib.sha256(" ".join((release, names, mirror, *options)).encode()).hexdigest()[:12]
    archive = support.BUILD / "roots" / f"{release}-{version}.tar"
    if not archive.exists():
        archive.parent.mkdir(exist_ok=True)
        made = pathlib.Path(tempfile.mkdtemp(prefix="tandem-root-"))
        made.chmod(0o755)
        # Syncing each file takes minutes on a busy disk, and a broken root is made again.
        settings = made / "etc" / "dpkg" / "dpkg.cfg.d"
        settings.mkdir(parents=True)
        (settings / "unsafe-io").write_text("force-unsafe-io\n")
        include = [f"--include={names}"] if names else []
        done = subprocess.run(["debootstrap", "--variant=minbase", *include, *options, release, str(made),
                               *([mirror] if mirror else [])],
                              capture_output=True, text=True, timeout=900, check=False)
        if done.returncode != 0:
            log = made / "debootstrap" / "debootstrap.log"
            tail = log.read_text(errors="replace")[-2000:] if log.exists() else ""
            shutil.rmtree(made, ignore_errors=True)
            raise AssertionError(f"debootstrap {release}: {done.stdout[-1000:]}{done.stderr}{tail}")
        part = archive.with_suffix(".part")
        run("tar", "-C", made, "--exclude=./var/cache/apt/archives/*.deb", "--exclude=./usr/share/doc/*",
            "--exclude=./usr/share/locale/*", "-cf", part, ".")
        shutil.rmtree(made)
        part.rename(archive)
    folder.mkdir(exist_ok=True)
    run("tar", "-C", folder, "-xf", archive)
