#!/usr/bin/env python3
"""The package for Debian: its parts, and its life in a fresh root without systemd.

`deb_test.py BUILD_DIR [unittest arguments]`. Roots need debootstrap and root; without, those tests are skipped.
"""

import re
import shutil
import sqlite3
import stat
import unittest

import debian_root
import support
from support import Case, dist, inside, run

UNIT = "usr/lib/systemd/system/tandem.service"
CONFIG = "etc/tandem/tandem.yaml"
SECRETS = ("etc/tandem/api.keys", "etc/tandem/admin.key")
QUIET = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}


def package():
    return dist("tandem_*_amd64.deb")


def field(name):
    return run("dpkg-deb", "--field", package(), name).strip()


class Parts(Case):
    @classmethod
    def setUpClass(cls):
        cls.entries = {}  # path: (mode, owner)
        for line in run("dpkg-deb", "--contents", package()).splitlines():
            mode, owner, _, _, _, path = line.split(maxsplit=5)
            cls.entries[path.removeprefix("./")] = (mode, owner)

    def control(self):
        folder = self.path / "control"
        run("dpkg-deb", "--control", package(), folder)
        return folder

    def test_it_has_the_program_the_service_and_their_documents(self):
        files = {path for path in self.entries if not path.endswith("/")}
        wanted = {"usr/bin/tandem", UNIT, CONFIG,
                  *(f"usr/share/doc/tandem/{name}" for name in ("copyright", "LICENSE", "LICENSES.txt", "README.md"))}
        self.assertLessEqual(wanted, files)
        # Headers and libraries are another component.
        self.assertEqual([path for path in files if path.startswith(("usr/include", "usr/lib/")) and path != UNIT], [])

    def test_everything_belongs_to_root_and_only_root_writes_it(self):
        for path, (mode, owner) in self.entries.items():
            self.assertEqual(owner, "root/root", path)
            self.assertEqual((mode[5], mode[8]), ("-", "-"), path)

    def test_control_names_what_a_system_must_have(self):
        depends = re.findall(r"(?:^|, )([a-z0-9.+-]+)", field("Depends"))
        self.assertLessEqual({"adduser", "libc6", "libssl3", "libsqlite3-0"}, set(depends))
        self.assertEqual(field("Architecture"), "amd64")
        self.assertRegex(field("Maintainer"), r"^[^<]+ <[^>]+@[^>]+>$")
        self.assertLess(len(field("Description").splitlines()[0]), 80)
        for line in field("Description").splitlines()[1:]:
            self.assertRegex(line, r"^ \S")

    def test_every_file_in_etc_is_a_conffile(self):
        listed = (self.control() / "conffiles").read_text().split()
        self.assertEqual(sorted(listed), ["/" + path for path in sorted(self.entries)
                                          if path.startswith("etc/") and not path.endswith("/")])

    def test_scripts_of_the_maintainer_are_plain_shell_that_ends_at_errors(self):
        for name in ("postinst", "prerm", "postrm"):
            script = self.control() / name if name == "postinst" else self.path / "control" / name
            text = script.read_text()
            self.assertTrue(text.startswith("#!/bin/sh\n") and "\nset -e\n" in text, name)
            self.assertTrue(script.stat().st_mode & stat.S_IXUSR, name)
            run("sh", "-n", script)

    def test_the_unit_starts_files_of_the_package(self):
        folder = self.path / "files"
        run("dpkg-deb", "--extract", package(), folder)
        unit = (folder / UNIT).read_text()
        for program, config in re.findall(r"^ExecStart(?:Pre)?=(\S+) serve --config (\S+)", unit, re.M):
            self.assertTrue((folder / program.lstrip("/")).exists())
            self.assertEqual(config, "/" + CONFIG)
        self.assertIn("User=tandem\n", unit)

    def test_the_program_is_stripped_and_its_version_is_the_packages(self):
        folder = self.path / "files"
        run("dpkg-deb", "--extract", package(), folder)
        program = folder / "usr/bin/tandem"
        self.assertNotIn(".symtab", run("readelf", "--section-headers", program))
        self.assertRegex(run(program, "version"), rf"^tandem {re.escape(field('Version'))} ")


@unittest.skipIf(debian_root.why_not(), debian_root.why_not())
class FreshRoot(Case):
    def setUp(self):
        super().setUp()
        self.root = self.path / "root"
        debian_root.unpack(self.root, packages=debian_root.TOOLS | debian_root.library_packages(
            support.BUILD / "tandem"))
        self.install(package())

    def dpkg(self, *arguments):
        return run(*inside(self.root, "dpkg", *arguments), env=QUIET)

    def install(self, file):
        shutil.copy(file, self.root / "tandem.deb")
        return self.dpkg("--install", "/tandem.deb")

    def start(self, *arguments):
        """Runs ExecStart as the service's user, with the directories of the unit."""
        unit = (self.root / UNIT).read_text()
        (program, words), = re.findall(r"^ExecStart=(\S+) serve (.+)$", unit, re.M)
        environment = dict(QUIET)
        for setting in re.search(r"^Environment=(.+)$", unit, re.M)[1].split():
            environment.__setitem__(*setting.split("=", 1))
        return self.serve(self.root, program, *words.split(), *arguments, user="tandem:tandem", env=environment)

    def key(self, name="api.keys"):
        return (self.root / "etc/tandem" / name).read_text().strip()

    def next_version(self):
        """The same package under the next version, with an edited default configuration."""
        folder = self.path / "next"
        run("dpkg-deb", "--raw-extract", package(), folder)
        control = folder / "DEBIAN" / "control"
        control.write_text(re.sub(r"(?m)^Version: .*", "Version: 99.0", control.read_text()))
        run("dpkg-deb", "-Zgzip", "-z1", "--build", folder, self.path / "next.deb")
        return self.path / "next.deb"

    def user(self):
        lines = (self.root / "etc/passwd").read_text().splitlines()
        return next((line.split(":") for line in lines if line.startswith("tandem:")), None)

    def test_installing_makes_a_user_keys_that_only_it_reads_and_a_service_that_answers(self):
        user = self.user()
        self.assertEqual(user[5:], ["/var/lib/tandem", "/usr/sbin/nologin"])
        for path in SECRETS:
            file = self.root / path
            self.assertEqual(stat.S_IMODE(file.stat().st_mode), 0o640, path)
            self.assertEqual((file.stat().st_uid, file.stat().st_gid), (0, int(user[3])), path)
            self.assertRegex(file.read_text(), r"^[0-9a-f]{48}\n$", path)
        for path in ("var/lib/tandem", "var/cache/tandem"):
            folder = (self.root / path).stat()
            self.assertEqual((stat.S_IMODE(folder.st_mode), folder.st_uid), (0o700, int(user[2])), path)
        self.assertTrue((self.root / "etc/systemd/system/multi-user.target.wants/tandem.service").is_symlink())

        server = self.start()

        self.assertGreater(len(server.chat(self.key())), 10)
        self.assertEqual(server.request("POST", "/v1/chat/completions", support.WISH)[0], 401)
        self.assertEqual(server.request("GET", "/admin/jobs", key=self.key("admin.key"))[0], 200)
        self.assertEqual(server.stop(), 0)
        self.assertTrue((self.root / "var/lib/tandem/tandem.db").exists())

    def test_an_upgrade_keeps_data_keys_and_edited_settings(self):
        config = self.root / CONFIG
        config.write_text(config.read_text().replace("max-seqs: 32", "max-seqs: 31"))
        key = self.key()
        server = self.start()
        status, made = server.request("POST", "/v1/responses",
                                      {"model": "tandem-stories", "input": "A dog.", "max_output_tokens": 16}, key)
        self.assertEqual(status, 200, made)
        self.assertEqual(server.stop(), 0)

        self.install(self.next_version())

        self.assertIn("99.0", self.dpkg("--status", "tandem"))
        self.assertIn("max-seqs: 31", config.read_text())
        self.assertEqual(self.key(), key)
        server = self.start()
        self.assertEqual(server.request("GET", f"/v1/responses/{made['id']}", key=key), (200, made))
        self.assertEqual(server.stop(), 0)

    def test_a_data_directory_of_a_newer_version_is_refused_in_words_and_stays_as_it_is(self):
        self.assertEqual(self.start().stop(), 0)
        file = self.root / "var/lib/tandem/tandem.db"
        with sqlite3.connect(file) as database:
            database.execute("PRAGMA user_version = 1000")
        database.close()
        before = file.read_bytes()

        with self.assertRaisesRegex(AssertionError, r"tandem\.db has schema version 1000, but this program supports "
                                                    r"only versions up to \d+; use a newer program"):
            self.start()

        self.assertEqual(file.read_bytes(), before)

    def test_removing_keeps_settings_and_data_and_purging_leaves_nothing(self):
        self.assertEqual(self.start().stop(), 0)

        self.dpkg("--remove", "tandem")

        self.assertFalse((self.root / "usr/bin/tandem").exists())
        for path in (CONFIG, *SECRETS, "var/lib/tandem/tandem.db"):
            self.assertTrue((self.root / path).exists(), path)

        self.dpkg("--purge", "tandem")

        self.assertIsNone(self.user())
        left = run("find", self.root, "-name", "*tandem*", "-not", "-path", f"{self.root}/tandem.deb").split()
        self.assertEqual([path for path in left if path != str(self.root)], [])

    def test_a_second_installation_makes_new_keys_only_where_none_are(self):
        api, admin = self.key(), self.key("admin.key")
        (self.root / SECRETS[1]).unlink()

        self.install(package())

        self.assertEqual(self.key(), api)
        self.assertNotEqual(self.key("admin.key"), admin)


if __name__ == "__main__":
    support.main()
