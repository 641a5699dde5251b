"""mount(): the mount point, the lifetime, access, and cleanup."""

import contextlib
import json
import logging
import mmap
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import unittest.mock
from pathlib import Path

import archfs
from stage import BIG, Stage, mounted, run


class MountTest(Stage):
    def test_a_with_block_has_the_files_and_leaves_nothing(self):
        with archfs.mount(self.image) as root:
            self.assertIsInstance(root, Path)
            self.assert_readable(root)
            self.assertIn(str(root), mounted())
        self.assertNotIn(str(root), mounted())
        self.assertFalse(root.exists())

    def test_the_default_mount_point_is_private(self):
        with archfs.mount(self.image) as root:
            self.assertEqual(root.parent, Path("/dev/shm"))
            self.assertRegex(root.name, f"^archfs-{os.getuid()}-[0-9a-f]{{32}}$")
            if os.geteuid() == 0:
                other = subprocess.run(["ls", root], user=65534, capture_output=True, text=True, check=False)
                self.assertIn("ermission denied", other.stderr)

    def test_without_dev_shm_the_mount_is_in_the_temporary_directory(self):
        real = os.access
        with unittest.mock.patch("os.access", lambda path, how: path != "/dev/shm" and real(path, how)):
            with unittest.mock.patch("tempfile.tempdir", self.work), archfs.mount(self.image) as root:
                self.assertEqual(root.parent, Path(self.work))
                self.assert_readable(root)
        self.assert_gone(root)

    def test_an_exception_in_the_block_unmounts_and_propagates(self):
        with self.assertRaisesRegex(KeyError, "mine"), archfs.mount(self.image) as root:
            raise KeyError("mine")
        self.assertFalse(root.exists())

    def test_a_layer_over_the_archive_can_be_changed(self):
        with archfs.mount(self.image, overlay="tmp") as root:
            (root / "new").write_text("new", encoding="ascii")
            self.assertEqual((root / "new").read_text(encoding="ascii"), "new")
            with archfs.mount(self.image) as other:
                self.assertFalse((other / "new").exists())
        self.assert_gone(root)

    def test_blocks_may_be_nested_and_the_same_archive_is_mounted_once(self):
        with archfs.mount(self.image) as one, archfs.mount(self.image) as other:
            self.assertEqual(one, other)
            self.assert_readable(one)
            with archfs.mount(self.tar) as third:
                self.assert_readable(third)
            self.assert_readable(other)

    def test_an_explicit_mount_point(self):
        with archfs.mount(self.image, at=self.mount_point) as root:
            self.assertEqual(root, Path(self.mount_point))
            self.assert_readable(root)
        os.mkdir(self.mount_point)
        with archfs.mount(self.image, at=Path(self.mount_point)) as root:
            self.assert_readable(root)
        self.assertEqual(os.listdir(self.mount_point), [], "an existing directory is kept")
        os.rmdir(self.mount_point)

    def test_a_relative_and_a_linked_mount_point(self):
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.work)
        with archfs.mount("data.sqfs", at="mount") as root:
            self.assertEqual(str(root), self.mount_point)
            os.chdir("/")
            self.assert_readable(root)
        link = os.path.join(self.work, "link")
        os.symlink(self.work, link)
        self.addCleanup(os.unlink, link)
        with archfs.mount(self.image, at=os.path.join(link, "mount")) as root:
            with archfs.mount(self.image, at=self.mount_point) as same:
                self.assert_readable(same)
            self.assert_readable(root)

    def test_mounts_at_one_mount_point_share_and_the_last_one_unmounts(self):
        one = archfs.mount(self.image, at=self.mount_point)
        other = archfs.mount(self.image, at=self.mount_point)
        one.unmount()
        one.unmount()
        self.assertTrue(one.closed and not other.closed)
        self.assert_readable(other)
        other.unmount()
        self.assertNotIn(self.mount_point, mounted())

    def test_several_archives_merge_and_options_are_passed_on(self):
        with archfs.mount(self.image, self.tar, cache="8M", threads=2, cache_idle=0.5) as root:
            self.assert_readable(root)
        numbers = os.path.join(self.work, "numbers.json")
        with archfs.mount(
            self.image, subdir="folder", cache=1 << 23, stats_json=numbers, grace="1s", idle_timeout="1h",
            stage="/dev/shm", readahead="all", preload=True, archive_cache="drop", no_name_readahead=True,
            options=["uid=7", "gid=8"], linger=0,
        ) as root:
            self.assertEqual(os.listdir(root), ["data"])
            self.assertEqual((root / "data").stat().st_uid, 7)
        self.assertTrue(os.path.exists(numbers), "written when it is unmounted")

    def test_nested_archives_and_an_image_at_an_offset(self):
        directory = os.path.join(self.work, "inner")
        os.makedirs(directory)
        os.link(self.tar, os.path.join(directory, "a.tar"))
        outer = os.path.join(self.work, "outer.sqfs")
        archfs.pack(directory, outer)
        with archfs.mount(outer, recursive=True) as root:
            self.assert_readable(root / "a")
        shifted = os.path.join(self.work, "shifted")
        with open(shifted, "wb") as file, open(self.image, "rb") as image:
            file.write(bytes(4096) + image.read())
        with archfs.mount(shifted, offset="4K") as root:
            self.assert_readable(root)

    def test_stats(self):
        mount = archfs.mount(self.image)
        self.assert_readable(mount)
        self.assertGreater(mount.stats()["requests"]["total"], 0)
        self.assertEqual(mount.archives, (self.image,))
        self.assertIn("data.sqfs", repr(mount))
        mount.unmount()
        self.assertIn("unmounted", repr(mount))
        with self.assertRaises(archfs.NotMounted):
            mount.stats()

    def test_files_that_are_open_or_mapped_stay_readable(self):
        with archfs.mount(self.image) as root:
            file = open(root / "folder" / "data", "rb")
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        self.assertNotIn(str(root), mounted())
        self.assertFalse(root.exists())
        self.assertEqual(file.read(), BIG)
        self.assertEqual(mapped[:], BIG)
        mapped.close()
        file.close()

    def test_the_working_directory_may_be_in_it(self):
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        with archfs.mount(self.image) as root:
            os.chdir(root / "folder")
        self.assertFalse(root.exists())

    def test_a_dropped_mount_is_unmounted_with_a_warning_at_the_line_that_dropped_it(self):
        code = "import archfs, sys\nroot = archfs.mount(sys.argv[1]).path\nassert not root.exists()\n"
        script = os.path.join(self.work, "dropped.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(code)
        # With the warnings that Python shows by default.
        ran = subprocess.run([sys.executable, script, self.image], capture_output=True, text=True, check=True)
        self.assertIn(f"{script}:2: RuntimeWarning: ", ran.stderr)
        self.assertIn("no variable refers to its Mount", ran.stderr)

    def test_a_failed_unmount_raises_and_can_be_retried(self):
        mount = archfs.mount(self.image)
        broken = {"ARCHFS_EXECUTABLE": shutil.which("false")}
        with unittest.mock.patch.dict(os.environ, broken), self.assertRaises(archfs.Error):
            mount.unmount()
        self.assertFalse(mount.closed)
        self.assert_readable(mount)
        mount.unmount()
        self.assertTrue(mount.closed)
        self.assertFalse(mount.path.exists())

    def test_without_descriptors_the_exception_propagates_and_the_mount_ends_later(self):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, limit)
        taken, mount = [], archfs.mount(self.image)
        with self.assertLogs("archfs", logging.WARNING), self.assertRaisesRegex(KeyError, "mine"), mount:
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, limit[1]))
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.open("/dev/null", os.O_RDONLY))
            raise KeyError("mine")
        with self.assertRaisesRegex(archfs.Error, "Too many open files"):
            mount.unmount()
        for descriptor in taken:
            os.close(descriptor)
        mount.unmount()
        self.assertFalse(mount.path.exists())

    def test_unmount_returns_when_the_program_ends(self):
        """The program closes stderr some time before it exits."""
        program = os.path.join(self.work, "program")
        with open(program, "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\n"{archfs.executable()}" "$@"\nexec 2>&-\nsleep 0.02\n')
        os.chmod(program, 0o755)
        with unittest.mock.patch.dict(os.environ, ARCHFS_EXECUTABLE=program):
            took, alone = [], []
            for _ in range(9):
                before = time.monotonic()
                archfs.info(self.image)
                took.append(time.monotonic() - before)
                before = time.monotonic()
                subprocess.run([program, "info", "--json", self.image], check=True, stdout=subprocess.DEVNULL)
                alone.append(time.monotonic() - before)
        # The fastest of each, which a busy machine disturbs least.
        self.assertLess(min(took), min(alone) + 0.06)

    def test_a_mount_unmounted_by_another_process_is_no_error(self):
        with archfs.mount(self.image, at=self.mount_point):
            run("unmount", "--lazy", self.mount_point)
        self.assertNotIn(self.mount_point, mounted())

    def test_a_mount_kept_by_a_user_stays(self):
        run("mount", "--quiet", "--keep", self.image, self.mount_point)
        with archfs.mount(self.image, at=self.mount_point) as root:
            self.assert_readable(root)
        self.assert_readable(self.mount_point)
        run("unmount", self.mount_point)

    def test_cleans_up_after_a_killed_daemon(self):
        for _ in range(5):
            self.kill_the_daemon()

    def kill_the_daemon(self):
        with archfs.mount(self.image, at=self.mount_point):
            rows = [json.loads(line) for line in run("list", "--json").splitlines()]
            (row,) = [row for row in rows if row["mountpoint"] == self.mount_point]
            os.kill(row["daemon"], signal.SIGKILL)
        self.assert_gone(self.mount_point)

    def test_names_of_any_bytes(self):
        directory = os.path.join(os.fsencode(self.work), b"a \xff,b=\\ \n")
        os.mkdir(directory)
        archive = os.path.join(directory, b"-x \xfe.sqfs")
        archfs.pack(self.source, archive)
        mount_point = os.path.join(directory, b"mount \xfd")
        with archfs.mount(archive, at=mount_point) as root:
            self.assertEqual(os.fsencode(root), mount_point)
            self.assert_readable(os.fsdecode(mount_point))
        with archfs.mount(os.fsdecode(archive)) as root:
            self.assert_readable(root)
        before = os.getcwdb()
        self.addCleanup(os.chdir, before)
        os.chdir(directory)
        with archfs.mount(b"-x \xfe.sqfs", at="-m") as root:
            self.assert_readable(root)
        self.assertEqual(os.listdir(directory), [b"-x \xfe.sqfs"])

    def test_concurrent_threads(self):
        failed, mount_points = [], []
        start = threading.Barrier(8)

        def work(number):
            try:
                start.wait()
                for _ in range(3):
                    with archfs.mount(self.image, at=self.mount_point if number % 2 else None) as root:
                        self.assert_readable(root)
                        mount_points.append(root)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=[number]) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failed, [])
        self.assertEqual(len(mount_points), 24)
        self.assertEqual([mount_point for mount_point in set(mount_points) if mount_point.exists()], [])

    def test_a_mount_is_a_path_and_stays_in_its_process(self):
        mount = archfs.mount(self.image)
        self.assertEqual(os.fspath(mount), str(mount.path))
        with self.assertRaises(TypeError):
            pickle.dumps(mount)
        mount.unmount()
