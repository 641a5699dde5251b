"""pack() and info()."""

import os
import pty
import subprocess
import sys
import tarfile
import threading
import unittest.mock

import archfs
from stage import BIG, Stage


class PackTest(Stage):
    def out(self, name):
        path = os.path.join(self.work, name)
        if os.path.lexists(path):
            os.unlink(path)
        return path

    def test_a_packed_archive_is_counted_and_can_be_mounted(self):
        image = self.out("out.sqfs")
        made = archfs.pack(self.source, image, compressor="gzip:1", block_size="64K", read_cost=65536)
        self.assertEqual((made["archive"], made["format"], made["files"]), (image, "squashfs", 2))
        self.assertEqual((made["compressor"], made["block_size"], made["problems"]), ("gzip", 65536, 0))
        self.assertEqual(made["bytes"], len(BIG) + 6)
        found = archfs.info(image)
        (largest,) = archfs.info(image, top=1)["largest_files"]
        self.assertEqual((largest["path"], largest["bytes"]), ("folder/data", len(BIG)))
        self.assertEqual((found["files"], found["squashfs"]["compressor"]), (2, "gzip"))
        with archfs.mount(image) as root:
            self.assert_readable(root)

    def test_a_tar_and_shards(self):
        made = archfs.pack(self.source, archive=self.out("out.tar"), owner=(7, 8))
        self.assertEqual((made["format"], made["files"], made["folders"]), ("tar", 2, 2))
        with tarfile.open(made["archive"]) as tar:
            self.assertEqual({(member.uid, member.gid) for member in tar}, {(7, 8)})
        self.assertEqual(archfs.info(made["archive"])["tar"]["spooled"], False)
        samples = os.path.join(self.work, "samples", "dog")
        os.makedirs(samples)
        for name in ("1.jpg", "1.txt", "2.jpg"):
            with open(os.path.join(samples, name), "w", encoding="utf-8") as file:
                file.write(name)
        made = archfs.pack(os.path.dirname(samples), self.out("s.tar"), shards="1M", shuffle=1, labels=True)
        self.assertEqual((made["format"], made["samples"], made["classes"]), ("shards", 2, 1))

    def test_lists_and_maps_as_files_and_as_values(self):
        strange = os.path.join(os.fsencode(self.source), b"a\n\xff")
        with open(strange, "wb"):
            pass
        self.addCleanup(os.unlink, strange)
        image = self.out("out.sqfs")
        archfs.pack(self.source, image, files_from=["hello", b"a\n\xff"], map={"hello": "new/name"})
        with archfs.mount(image) as root:
            found = sorted(os.listdir(os.fsencode(root)))
            self.assertEqual(found, [b"a\n\xff", b"new"])
            self.assertEqual((root / "new" / "name").read_bytes(), b"hello\n")
        listed = os.path.join(self.work, "list")
        with open(listed, "w", encoding="utf-8") as file:
            file.write("folder\n")
        archfs.pack(self.source, image, files_from=listed, force=True)
        self.assertEqual(archfs.info(image)["files"], 1)
        archfs.pack(self.source, image, files_from=(name for name in ["hello"]), force=True)
        self.assertEqual(archfs.info(image)["files"], 1)

    def test_patterns_leave_files_out(self):
        image = self.out("out.sqfs")
        files = archfs.pack(self.source, image)["files"]
        made = archfs.pack(self.source, image, exclude=["hello", "!nothing"], no_xattrs=True, force=True)
        self.assertEqual((made["excluded"], made["files"]), (1, files - 1))
        patterns = self.out("patterns")
        with open(patterns, "w", encoding="utf-8") as file:
            file.write("*\n")
        made = archfs.pack(self.source, image, exclude="!hello", exclude_from=patterns, force=True)
        self.assertEqual(made["files"], 1)

    def test_an_existing_archive_is_replaced_only_on_request(self):
        image = self.out("out.sqfs")
        archfs.pack(self.source, image)
        with self.assertRaisesRegex(archfs.AlreadyExists, "force=True"):
            archfs.pack(self.source, image)
        archfs.pack(self.source, image, force=True)

    def test_files_that_cannot_be_packed_are_named(self):
        image = self.out("out.sqfs")
        with self.assertRaises(archfs.Error) as caught:
            archfs.pack(self.source, image, files_from=["hello", "not there", "nor this"])
        error = caught.exception
        self.assertEqual(error.status, 1)
        self.assertIn("2 files could not be packed", error.message)
        self.assertEqual(len(error.notes), 2)
        self.assertFalse(os.path.exists(image))
        with self.assertLogs("archfs", "WARNING") as told:
            made = archfs.pack(self.source, image, files_from=["hello", "not there"], keep_going=True)
        self.assertEqual((made["problems"], made["files"]), (1, 1))
        self.assertIn("not there", "".join(told.output))

    def test_on_a_terminal_the_bar_is_drawn_and_other_lines_are_in_the_exception(self):
        """A stand-in that writes like archfs, each line at once, so that the test is short."""
        program = os.path.join(self.work, "program")
        with open(program, "w", encoding="utf-8") as file:
            file.write(
                "#!/bin/sh\n[ -t 2 ] || exit 9\nstty size <&2 >&2\n"
                "printf '\\r\\033[2Karchfs: packing ### 30%%' >&2\n"
                "printf '\\r\\033[2K' >&2\n"
                "printf 'archfs[n1]: error: it: failed\\n' >&2\n"
                "printf 'archfs[n1]: hint: do something\\n' >&2\nexit 1\n"
            )
        os.chmod(program, 0o755)
        shown, error = self.at_a_terminal(
            f"ARCHFS = {program!r}\n"
            "import archfs, os\n"
            "os.environ['ARCHFS_EXECUTABLE'] = ARCHFS\n"
            "try:\n    archfs.pack('a', 'b.sqfs')\n"
            "except archfs.Error as error:\n    print(repr((error.message, error.hint, error.notes)))\n"
        )
        self.assertEqual(eval(error), ("it: failed", "do something", ("33 77",)))
        self.assertEqual(shown, b"\r\x1b[2Karchfs: packing ### 30%\r\x1b[2K")

    def test_on_a_terminal_archfs_itself_packs(self):
        image = self.out("out.sqfs")
        shown, said = self.at_a_terminal(
            f"import archfs\nprint(archfs.pack({self.source!r}, {image!r})['files'])"
        )
        self.assertEqual((shown, said), (b"", "2\n"))

    def at_a_terminal(self, code):
        """Runs code with a terminal as stderr; returns the text on the terminal and the stdout."""
        ours, theirs = pty.openpty()
        subprocess.run(["stty", "rows", "33", "cols", "77"], stdin=theirs, check=True)
        shown = bytearray()

        def read():
            while True:
                try:
                    part = os.read(ours, 4096)
                except OSError:
                    return
                if not part:
                    return
                shown.extend(part)

        reader = threading.Thread(target=read)
        reader.start()
        ended = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=theirs, check=False)
        os.close(theirs)
        reader.join()
        os.close(ours)
        self.assertEqual(ended.returncode, 0, bytes(shown))
        return bytes(shown), ended.stdout.decode()

    def test_without_the_program(self):
        with unittest.mock.patch.dict(os.environ, ARCHFS_EXECUTABLE="/nowhere/archfs"):
            with self.assertRaisesRegex(archfs.ExecutableNotFound, "ARCHFS_EXECUTABLE") as caught:
                archfs.pack(self.source, self.out("out.sqfs"))
        self.assertIsInstance(caught.exception, FileNotFoundError)
