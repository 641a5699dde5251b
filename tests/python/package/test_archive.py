"""ls(), read(), open(), verify() and extract(), which need no mount, and list(), wait() and unmount()."""

import os
import stat
import subprocess
import sys

import archfs
from stage import BIG, Stage, run


class ArchiveTest(Stage):
    def test_entries_are_what_stat_says(self):
        for archive in (self.image, self.tar):
            entries = archfs.ls(archive, descend=True)
            self.assertEqual([entry["path"] for entry in entries], ["folder", "folder/data", "hello"])
            for entry in entries:
                found = os.lstat(os.path.join(self.source, entry["path"]))
                self.assertEqual(int(entry["mode"], 8), stat.S_IMODE(found.st_mode))
                self.assertEqual((entry["uid"], entry["gid"]), (found.st_uid, found.st_gid))
                self.assertEqual(entry["modified_seconds"], int(found.st_mtime))
                self.assertEqual(entry["kind"] == "directory", stat.S_ISDIR(found.st_mode))
                if entry["kind"] == "file":
                    self.assertEqual(entry["size_bytes"], found.st_size)
        self.assertEqual([entry["path"] for entry in archfs.ls(self.image, "f*/d*", b"hello")], ["folder/data", "hello"])
        with self.assertRaisesRegex(archfs.MissingFile, "none: no such path"):
            archfs.ls(self.image, "none")
        with self.assertRaises(archfs.MissingFile):
            archfs.ls("none.sqfs")

    def test_an_archive_that_is_cut_off_is_damaged_for_all_functions(self):
        cut = os.path.join(self.work, "cut.tar")
        with open(self.tar, "rb") as whole, open(cut, "wb") as file:
            file.write(whole.read()[:-200_000])
        for function in archfs.ls, archfs.info, archfs.mount:
            with self.assertRaisesRegex(archfs.DamagedArchive, "cut off"):
                function(cut)

    def test_names_that_begin_with_a_dot_or_are_not_utf_8(self):
        source = os.path.join(os.fsencode(self.work), b"odd")
        os.mkdir(source)
        for name in (b".hidden", b"\xff"):
            with open(os.path.join(source, name), "wb"):
                pass
        os.symlink("target", os.path.join(source, b"link"))
        image = os.path.join(self.work, "odd.sqfs")
        archfs.pack(source, image)
        hidden, link, odd = archfs.ls(image)
        self.assertEqual((hidden["path"], link["target"]), (".hidden", "target"))
        self.assertEqual(bytes.fromhex(odd["path_hex"]), b"\xff")
        self.assertEqual(len(archfs.ls(image, all=False)), 2)
        self.assertEqual(archfs.read(image, b"\xff"), b"")

    def test_files_are_read_byte_for_byte(self):
        for archive in (self.image, self.tar):
            self.assertEqual(archfs.read(archive, "folder/data"), BIG)
            with archfs.open(archive, "/folder/data") as file:
                self.assertEqual((file.seek(-3, os.SEEK_END), file.read()), (len(BIG) - 3, BIG[-3:]))
            with self.assertRaises(archfs.IsADirectory) as caught:
                archfs.read(archive, "folder")
            self.assertIsInstance(caught.exception, IsADirectoryError)
            self.assertEqual(caught.exception.filename, f"{archive}: folder")
            with self.assertRaises(archfs.MissingFile) as caught:
                archfs.read(archive, "none")
            self.assertEqual(caught.exception.filename, f"{archive}: none")
            self.assertEqual(caught.exception.hint, f"to see its paths: archfs.ls({archive!r})")

    def test_damage_is_in_the_result_of_verify(self):
        sound = archfs.verify(self.image)
        self.assertEqual((sound["status"], sound["files"], sound["faults"]), ("sound", 2, []))
        damaged = os.path.join(self.work, "damaged.sqfs")
        archfs.pack(self.source, damaged, compressor="gzip")
        with open(damaged, "r+b") as file:
            file.seek(200)
            file.write(b"\xaa" * 100)
        found = archfs.verify(damaged, threads=1)
        self.assertEqual((found["status"], found["damaged"]), ("damaged", len(found["faults"])))
        self.assertIn(found["faults"][0]["path"], ("hello", "folder/data"))
        self.assertEqual(archfs.verify(os.path.join(self.source, "hello"))["status"], "damaged")
        with self.assertRaises(archfs.MissingFile):
            archfs.verify("none.sqfs")

    def test_archives_are_extracted(self):
        out = os.path.join(self.work, "out")
        archfs.extract(self.image, out)
        self.assert_readable(out)
        subprocess.run(["diff", "-r", self.source, out], check=True)
        with self.assertRaises(archfs.Error) as caught:
            archfs.extract(self.image, out)
        self.assertTrue(caught.exception.message)
        part = os.path.join(self.work, "part")
        archfs.extract(self.tar, directory=part, only=b"hello")
        self.assertEqual(os.listdir(part), ["hello"])


class MountsTest(Stage):
    def test_mounts_of_other_processes_are_listed_and_unmounted(self):
        archfs.mount(self.image, at=self.mount_point).unmount()
        run("mount", "-q", "--keep", self.image, self.mount_point)
        (found,) = [one for one in archfs.list() if one["mountpoint"] == self.mount_point]
        self.assertEqual((found["archives"], found["state"], found["kept"]), ([self.image], "alive", True))
        archfs.wait(self.mount_point, timeout=10)
        with open(os.path.join(self.mount_point, "hello"), "rb") as file:
            with self.assertRaisesRegex(archfs.Error, "in use"):
                archfs.unmount(self.mount_point)
            archfs.unmount(self.mount_point, lazy=True)
            self.assertEqual(file.read(), b"hello\n")
        with self.assertRaises(archfs.NotMounted):
            archfs.unmount(self.mount_point)
        with self.assertRaises(archfs.TimedOut):
            archfs.wait(self.mount_point, timeout=1)

    def test_wait_returns_when_another_process_has_mounted(self):
        code = f"import archfs\narchfs.wait({self.mount_point!r}, '2m')\nprint(open({self.mount_point!r} + '/hello').read())"
        waiting = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        with archfs.mount(self.image, at=self.mount_point):
            self.assertEqual(waiting.communicate()[0], "hello\n\n")

    def test_a_mount_that_was_unmounted_cannot_be_entered(self):
        mount = archfs.mount(self.image)
        mount.unmount()
        with self.assertRaisesRegex(archfs.UsageError, "was unmounted"):
            with mount:
                self.fail("entered")
