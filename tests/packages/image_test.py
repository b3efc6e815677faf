#!/usr/bin/env python3
"""The container image: its description, its files, and the program inside of them.

`image_test.py BUILD_DIR [unittest arguments]`.
"""

import gzip
import hashlib
import io
import json
import shutil
import stat
import tarfile
import unittest

import support
from support import ROOT, Case, dist, run

KEY = "an-api-key"


class Image(Case):
    def setUp(self):
        super().setUp()
        with tarfile.open(dist("tandem-*-image.tar")) as archive:
            self.files = {entry.name: archive.extractfile(entry).read() for entry in archive if entry.isfile()}

    def blob(self, entry):
        content = self.files["blobs/sha256/" + entry["digest"].removeprefix("sha256:")]
        self.assertEqual("sha256:" + hashlib.sha256(content).hexdigest(), entry["digest"])
        self.assertEqual(len(content), entry["size"])
        return content

    def manifest(self):
        (entry,) = json.loads(self.files["index.json"])["manifests"]
        return json.loads(self.blob(entry))

    def config(self):
        return json.loads(self.blob(self.manifest()["config"]))

    def layer(self):
        (entry,) = self.manifest()["layers"]
        return gzip.decompress(self.blob(entry))

    def test_every_part_has_the_digest_and_size_under_which_it_is_named(self):
        self.assertEqual(json.loads(self.files["oci-layout"]), {"imageLayoutVersion": "1.0.0"})
        self.assertEqual(self.config()["rootfs"]["diff_ids"], ["sha256:" + hashlib.sha256(self.layer()).hexdigest()])
        (docker,) = json.loads(self.files["manifest.json"])
        self.assertEqual(json.loads(self.files[docker["Config"]]), self.config())
        self.assertEqual([gzip.decompress(self.files[path]) for path in docker["Layers"]], [self.layer()])

    def test_it_serves_as_a_user_without_rights_on_the_port_that_it_exposes(self):
        config = self.config()["config"]
        self.assertEqual(config["Entrypoint"][:4], ["/usr/bin/tandem", "serve", "--host", "0.0.0.0"])
        self.assertEqual(list(config["ExposedPorts"]), ["8080/tcp"])
        self.assertEqual(list(config["Volumes"]), ["/data"])
        self.assertNotEqual(config["User"].split(":")[0], "0")

    def test_the_layer_has_the_program_authorities_and_licences_and_little_else(self):
        with tarfile.open(fileobj=io.BytesIO(self.layer())) as layer:
            entries = {entry.name: entry for entry in layer}
            self.assertEqual({name for name, entry in entries.items() if entry.isfile()},
                             {"etc/group", "etc/passwd", "etc/ssl/certs/ca-certificates.crt", "usr/bin/tandem",
                              "usr/share/doc/tandem/LICENSES.txt"})
            self.assertEqual(layer.extractfile("usr/bin/tandem").read(), support.portable().read_bytes())
            self.assertIn(b"BEGIN CERTIFICATE", layer.extractfile("etc/ssl/certs/ca-certificates.crt").read())
        for name, entry in entries.items():
            self.assertFalse(entry.mode & stat.S_IWOTH and name != "tmp", name)
            self.assertFalse(entry.mode & (stat.S_ISUID | stat.S_ISGID), name)
            self.assertEqual(entry.uid == 0, name != "data", name)

    def test_the_same_inputs_make_the_same_bytes(self):
        again = self.path / "again.tar"
        version = dist("tandem_*_amd64.deb").name.split("_")[1]
        run(ROOT / "config/packaging/make_image.py", "--version", version, support.portable(), dist("LICENSES.txt"),
            again)

        self.assertTrue(again.read_bytes() == dist("tandem-*-image.tar").read_bytes())

    def test_common_tools_read_it(self):
        if not shutil.which("skopeo"):
            self.skipTest("needs skopeo")
        for transport in ("oci-archive", "docker-archive"):
            seen = json.loads(run("skopeo", "inspect", f"{transport}:{dist('tandem-*-image.tar')}"))
            self.assertEqual((seen["Architecture"], seen["Os"]), ("amd64", "linux"))

    @unittest.skipUnless(support.is_root(), "needs root")
    def test_inside_of_it_the_server_answers_with_a_key_and_refuses_to_start_without(self):
        root = self.path / "root"
        with tarfile.open(fileobj=io.BytesIO(self.layer())) as layer:
            layer.extractall(root, filter="fully_trusted")
        config = self.config()["config"]
        environment = dict(setting.split("=", 1) for setting in config["Env"])
        program, _, *words = config["Entrypoint"]
        at = words.index("--port")
        del words[at:at + 2]  # another one, which is free

        with self.assertRaisesRegex(AssertionError, "--api-key"):
            self.serve(root, program, *words, user=config["User"], env=environment)
        server = self.serve(root, program, *words, user=config["User"], env=environment | {"TANDEM_API_KEY": KEY})

        self.assertGreater(len(server.chat(KEY)), 10)
        self.assertEqual(server.stop(), 0)
        self.assertTrue((root / "data" / "tandem.db").exists())


if __name__ == "__main__":
    support.main()
