#!/usr/bin/env python3
"""Writes a container image of the portable program: one tar file for `podman load` and `docker load`.

Usage: make_image.py PROGRAM LICENSES OUT.tar [--version V] [--ca-bundle FILE]

The image has one layer, with the program, certificate authorities, licences and a user without rights. The same inputs
make the same bytes: times are SOURCE_DATE_EPOCH (default 0), owners are numbers, entries are sorted.
"""
import argparse
import datetime
import gzip
import hashlib
import io
import json
import os
import pathlib
import tarfile

USER = 10001  # of no distribution
DATA = "data"
EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))


def add(archive, name, content=None, mode=0o644, owner=0):
    """Adds a file, or a folder if `content` is None."""
    entry = tarfile.TarInfo(name)
    entry.mtime, entry.mode, entry.uid, entry.gid = EPOCH, mode, owner, owner
    if content is None:
        entry.type = tarfile.DIRTYPE
        archive.addfile(entry)
    else:
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))


def layer_of(program, licenses, ca_bundle):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        add(archive, DATA, mode=0o700, owner=USER)
        for folder in ("etc", "etc/ssl", "etc/ssl/certs"):
            add(archive, folder, mode=0o755)
        add(archive, "etc/group", f"root:x:0:\ntandem:x:{USER}:\n".encode())
        add(archive, "etc/passwd", (f"root:x:0:0:root:/:/nonexistent\n"
                                    f"tandem:x:{USER}:{USER}:tandem:/{DATA}:/nonexistent\n").encode())
        add(archive, "etc/ssl/certs/ca-certificates.crt", ca_bundle)
        add(archive, "tmp", mode=0o1777)
        for folder in ("usr", "usr/bin", "usr/share", "usr/share/doc", "usr/share/doc/tandem"):
            add(archive, folder, mode=0o755)
        add(archive, "usr/bin/tandem", program, mode=0o755)
        add(archive, "usr/share/doc/tandem/LICENSES.txt", licenses)
    return out.getvalue()


def config_of(layer, version):
    return {
        "created": datetime.datetime.fromtimestamp(EPOCH, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "User": f"{USER}:{USER}",
            "ExposedPorts": {"8080/tcp": {}},
            "Env": ["PATH=/usr/bin", f"HOME=/{DATA}", f"XDG_CACHE_HOME=/{DATA}/cache", f"HF_HOME=/{DATA}/hub"],
            # Other machines reach this address, so the server demands a key or --insecure.
            "Entrypoint": ["/usr/bin/tandem", "serve", "--host", "0.0.0.0", "--port", "8080", "--data-dir", f"/{DATA}"],
            "Volumes": {f"/{DATA}": {}},
            "WorkingDir": f"/{DATA}",
            "StopSignal": "SIGTERM",
            "Labels": {"org.opencontainers.image.title": "tandem",
                       "org.opencontainers.image.version": version,
                       "org.opencontainers.image.licenses": "Apache-2.0"},
        },
        "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
        "history": [{"created_by": "config/packaging/make_image.py"}],
    }


def digest(content):
    return "sha256:" + hashlib.sha256(content).hexdigest()


def json_bytes(value):
    return json.dumps(value, indent=1).encode()


def image_of(layer, version):
    """The files of the archive by name."""
    packed = gzip.compress(layer, compresslevel=6, mtime=0)
    config = json_bytes(config_of(layer, version))
    files = {}

    def blob(content, media_type):
        files["blobs/sha256/" + digest(content).removeprefix("sha256:")] = content
        return {"mediaType": media_type, "digest": digest(content), "size": len(content)}

    layer_entry = blob(packed, "application/vnd.oci.image.layer.v1.tar+gzip")
    config_entry = blob(config, "application/vnd.oci.image.config.v1+json")
    manifest = blob(json_bytes({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config_entry, "layers": [layer_entry],
    }), "application/vnd.oci.image.manifest.v1+json")
    manifest["annotations"] = {"org.opencontainers.image.ref.name": version,
                               "io.containerd.image.name": f"localhost/tandem:{version}"}
    files["oci-layout"] = json_bytes({"imageLayoutVersion": "1.0.0"})
    files["index.json"] = json_bytes({"schemaVersion": 2, "manifests": [manifest]})

    def path(entry):
        return "blobs/sha256/" + entry["digest"].removeprefix("sha256:")

    # For `docker load` before version 25, which does not know OCI's layout.
    files["manifest.json"] = json_bytes([{"Config": path(config_entry), "RepoTags": [f"localhost/tandem:{version}"],
                                          "Layers": [path(layer_entry)]}])
    return files


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("licenses", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--version", default="latest")
    parser.add_argument("--ca-bundle", type=pathlib.Path, default="/etc/ssl/certs/ca-certificates.crt",
                        help="from Debian's package ca-certificates")
    arguments = parser.parse_args()
    layer = layer_of(arguments.program.read_bytes(), arguments.licenses.read_bytes(), arguments.ca_bundle.read_bytes())
    with tarfile.open(arguments.out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for folder in ("blobs", "blobs/sha256"):
            add(archive, folder, mode=0o755)
        for name, content in sorted(image_of(layer, arguments.version).items()):
            add(archive, name, content)


main()
