"""Shared by the tests of the package: a directory with small archives, scripts in their own processes, and checks of
the mount table.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

import archfs

LIMIT = 120.0
BIG = bytes(range(256)) * 4096


def mounted(about=""):
    """The mount points of archfs in this namespace with `about` in the mount point or the archive."""
    with open("/proc/self/mountinfo", "rb") as file:
        rows = [line.split(b" ") for line in file]
    mount_points = [row[4] for row in rows if b"fuse.archfs" in row and os.fsencode(about) in b" ".join(row)]
    return {os.fsdecode(mount_point.replace(b"\\040", b" ").replace(b"\\134", b"\\")) for mount_point in mount_points}


def wait_until(what, is_so, limit=LIMIT):
    """Waits for a condition. The interval between checks grows to 50 ms."""
    deadline, pause = time.monotonic() + limit, 0.001
    while not is_so():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {limit} s: {what}")
        time.sleep(pause)
        pause = min(pause * 2, 0.05)


def run(*words):
    """The stdout of `archfs WORDS`."""
    command = [archfs.executable(), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Stage(unittest.TestCase):
    """A test with a directory `work` that has `data.sqfs`, `more.tar` and their source directory `source`."""

    @classmethod
    def setUpClass(cls):
        if not os.path.exists("/dev/fuse"):
            raise unittest.SkipTest("no /dev/fuse")
        cls.work = tempfile.mkdtemp(prefix="archfs-package-")
        cls.addClassCleanup(shutil.rmtree, cls.work, ignore_errors=True)
        cls.source = os.path.join(cls.work, "source")
        os.makedirs(os.path.join(cls.source, "folder"))
        for name, data in (("hello", b"hello\n"), ("folder/data", BIG)):
            with open(os.path.join(cls.source, name), "wb") as file:
                file.write(data)
        cls.image = os.path.join(cls.work, "data.sqfs")
        cls.tar = os.path.join(cls.work, "more.tar")
        archfs.pack(cls.source, cls.image)
        archfs.pack(cls.source, cls.tar)

    def setUp(self):
        self.mount_point = os.path.join(self.work, "mount")
        self.addCleanup(self.assert_nothing_left)

    def assert_nothing_left(self):
        left = mounted(about=self.work)
        for mount_point in left:
            run("unmount", "--lazy", mount_point)
        self.assertEqual(left, set(), "mounts are left")
        self.assertFalse(os.path.lexists(self.mount_point), "the directory still exists")

    def assert_readable(self, root):
        with open(os.path.join(root, "hello"), "rb") as file:
            self.assertEqual(file.read(), b"hello\n")
        with open(os.path.join(root, "folder", "data"), "rb") as file:
            self.assertEqual(file.read(), BIG)

    def assert_gone(self, mount_point):
        mount_point = str(mount_point)
        wait_until(f"{mount_point} is gone", lambda: mount_point not in mounted() and not os.path.lexists(mount_point))

    def script(self, code, **options):
        """Starts Python with `code`, in which IMAGE, TAR and MOUNT_POINT are set. `tell` writes to its stdin."""
        head = f"import archfs, os, sys\nIMAGE, TAR, MOUNT_POINT = {self.image!r}, {self.tar!r}, {self.mount_point!r}\n"
        return self.start("-c", head + textwrap.dedent(code), **options)

    def start(self, *arguments, directory=None, **options):
        """Starts Python with these arguments."""
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [sys.executable, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, text=True,
            cwd=directory or self.work, **options
        )
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        process.kill()
        process.communicate()

    def finished(self, process, status=0):
        """Waits for the process, which must end with that status, and returns its output."""
        output, said = process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, status, said)
        self.said = said
        return output

    def line(self, process):
        line = process.stdout.readline()
        if not line:
            self.fail(f"it ended: {process.stderr.read()}")
        return line.rstrip("\n")

    @staticmethod
    def tell(process):
        process.stdin.write("go\n")
        process.stdin.flush()

