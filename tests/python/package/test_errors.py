"""Errors are raised as the documented exceptions."""

import importlib.metadata
import logging
import os
import pickle
import shutil
import signal
import subprocess
import tempfile
import traceback
import unittest.mock

import archfs
from stage import Stage, mounted, run


class ErrorTest(Stage):
    def failing(self, kind, call, *arguments, **options):
        with self.assertRaises(kind) as caught:
            call(*arguments, **options)
        error = caught.exception
        self.assertIs(type(error), kind)
        again = pickle.loads(pickle.dumps(error))
        self.assertEqual((type(again), str(again), again.status), (kind, str(error), error.status))
        return error

    def test_a_missing_archive(self):
        error = self.failing(archfs.MissingFile, archfs.mount, "/nowhere/data.sqfs", at=self.mount_point)
        self.assertIsInstance(error, FileNotFoundError)
        self.assertEqual((error.filename, error.errno, error.status), ("/nowhere/data.sqfs", 2, 1))
        self.assertEqual(str(error), "/nowhere/data.sqfs: no such file")
        error = self.failing(archfs.MissingFile, archfs.mount, self.image, "/nowhere.tar")
        self.assertEqual(error.filename, "/nowhere.tar")
        self.assertIn("to name the mount point: at='/nowhere.tar'", error.hint)
        directory = self.failing(archfs.IsADirectory, archfs.mount, self.image, os.path.relpath(self.source))
        self.assertIn("to name the mount point: at=", directory.hint)
        again = pickle.loads(pickle.dumps(error))
        self.assertEqual((again.filename, again.errno), ("/nowhere.tar", 2))
        self.failing(archfs.MissingFile, archfs.info, "/nowhere.tar")
        self.failing(archfs.MissingFile, archfs.pack, "/nowhere", os.path.join(self.work, "never.sqfs"))

    def test_a_dangling_link_and_an_archive_that_stat_refuses(self):
        link = os.path.join(self.work, "link.sqfs")
        os.symlink("/nowhere/data.sqfs", link)
        self.assertEqual(self.failing(archfs.MissingFile, archfs.mount, link).filename, link)
        with unittest.mock.patch("os.stat", side_effect=PermissionError(13, "Permission denied")):
            error = archfs._command.failure(archfs._command.Outcome(1, "", []), [link])
        self.assertIs(type(error), archfs.Error)

    def test_not_an_archive_and_a_damaged_archive(self):
        error = self.failing(archfs.DamagedArchive, archfs.mount, os.path.join(self.source, "hello"))
        self.assertEqual(error.status, 3)
        self.assertRegex(str(error), "(?s)not a SquashFS image, tar or ZIP archive\nhint: .*offset=N")
        damaged = os.path.join(self.work, "damaged.sqfs")
        with open(self.image, "rb") as file:
            image = bytearray(file.read())
        image[64:72] = b"\xf0" * 8
        with open(damaged, "wb") as file:
            file.write(image)
        error = self.failing(archfs.DamagedArchive, archfs.mount, damaged, at=self.mount_point)
        self.assertIn("damaged.sqfs", error.message)

    def test_a_mount_point_in_use(self):
        with archfs.mount(self.image, at=self.mount_point) as root:
            error = self.failing(archfs.Error, archfs.mount, self.tar, at=self.mount_point)
            self.assertEqual(error.status, 1)
            self.assertIn("data.sqfs", str(error))
            self.failing(archfs.Error, archfs.mount, self.image, at=self.mount_point, subdir="folder")
            self.assert_readable(root)
        with self.assertRaises(archfs.Error):
            archfs.mount(self.image, at=self.source)
        with self.assertRaises(archfs.Error):
            archfs.mount(self.image, at=os.path.join(self.work, "no", "such", "folder"))

    def test_after_a_failure_the_mount_point_can_be_used(self):
        self.failing(archfs.MissingFile, archfs.mount, "/nowhere.sqfs", at=self.mount_point)
        with archfs.mount(self.image, at=self.mount_point) as root:
            self.assert_readable(root)

    def test_wrong_use(self):
        for call in (
            lambda: archfs.mount(),
            lambda: archfs.mount(self.image, cache="lots"),
            lambda: archfs.mount(self.image, options="no_such_option"),
            lambda: archfs.mount(self.image, self.tar, offset=7),
            lambda: archfs.pack(self.source, "out"),
            lambda: archfs.pack(self.source, "out.tar", compressor="xz"),
        ):
            error = self.failing(archfs.UsageError, call)
            self.assertIsInstance(error, ValueError)
            self.assertEqual(error.status, 2)

    def test_a_mount_point_of_another_user(self):
        if os.geteuid() != 0:
            self.skipTest("needs root, to become another user")
        code = (
            "try:\n"
            "    archfs.mount(IMAGE, at='/root/mount')\n"
            "except archfs.Error as error:\n"
            "    print(type(error).__name__, error.status)\n"
        )
        os.chmod(self.work, 0o755)
        head = f"import archfs\nIMAGE = {self.image!r}\n"
        other = subprocess.run(
            [os.path.realpath("/usr/bin/python3"), "-c", head + code], user=65534, group=65534,
            capture_output=True, text=True, check=False, env=self.reachable(),
        )
        self.assertIn(other.stdout.strip(), {"CannotMount 4", "PermissionDenied 1"}, other.stderr)

    def reachable(self):
        """An environment in which every user can run this package."""
        package = tempfile.mkdtemp(dir=self.work)
        os.chmod(package, 0o755)
        shutil.copytree(os.path.dirname(archfs.__file__), os.path.join(package, "archfs"))
        program = shutil.copy(archfs.executable(), os.path.join(package, "program"))
        return {"PYTHONPATH": package, "ARCHFS_EXECUTABLE": program, "PATH": os.environ["PATH"]}

    def test_a_file_that_exists_and_one_that_may_not_be_read(self):
        error = self.failing(archfs.AlreadyExists, archfs.pack, self.source, self.image)
        self.assertIsInstance(error, FileExistsError)
        self.assertEqual((error.filename, error.errno), (self.image, 17))
        self.assertEqual(str(error), f"{self.image}: already exists\nhint: use force=True to replace it")
        out = os.path.join(self.work, "extracted")
        archfs.extract(self.image, out)
        error = self.failing(archfs.AlreadyExists, archfs.extract, self.image, out)
        self.assertTrue(error.filename.startswith(out + "/"), error.filename)
        self.assertIn("overwrite=True", error.hint)
        self.assertEqual(len(error.notes), 1)
        error = self.failing(archfs.IsADirectory, archfs.info, self.source)
        self.assertEqual((error.filename, error.errno), (self.source, 21))
        if os.geteuid() != 0:
            self.skipTest("needs root, to become another user")
        code = (
            "try:\n"
            "    archfs.info(IMAGE)\n"
            "except PermissionError as error:\n"
            "    print(type(error).__name__, error.errno, error.filename)\n"
        )
        private = os.path.join(self.work, "private.sqfs")
        shutil.copy(self.image, private)
        os.chmod(private, 0o600)
        os.chmod(self.work, 0o755)
        other = subprocess.run(
            [os.path.realpath("/usr/bin/python3"), "-c", f"import archfs\nIMAGE = {private!r}\n{code}"],
            user=65534, group=65534, capture_output=True, text=True, check=False, env=self.reachable(),
        )
        self.assertEqual(other.stdout, f"PermissionDenied 13 {private}\n", other.stderr)

    def test_hints_and_messages_name_keywords(self):
        error = self.failing(archfs.UsageError, archfs.mount, self.image, cache="lots")
        self.assertTrue(error.message.startswith('cache: "lots" is not a size'), error.message)
        for hint, here in [
            ("use --keep-going to leave them out", "use keep_going=True to leave them out"),
            ("give all files one owner: --owner UID:GID", "give all files one owner: owner=UID:GID"),
            ("lower --cache or --threads", "lower cache=... or threads=..."),
            ("in a container, add --device /dev/fuse", "in a container, add --device /dev/fuse"),
            ("run `archfs doctor` to see", "run `python -m archfs doctor` to see"),
            ("to list it: archfs ls a.sqfs train", "to list it: archfs.ls('a.sqfs', 'train')"),
            ("to see its paths: archfs ls 'my data.sqfs'", "to see its paths: archfs.ls('my data.sqfs')"),
            ("to see its paths: archfs ls a,b.sqfs", "to see its paths: archfs.ls('a,b.sqfs')"),
            ("lower --cache-idle", "lower --cache-idle"),
            ("to extract a path of the archive, use --only PATH", "to extract a path of the archive, use only=PATH"),
            ("mounts that you no longer need (archfs list), or", "mounts that you no longer need (archfs.list()), or"),
        ]:
            self.assertEqual(archfs._errors.in_python(hint), here)

    def test_a_traceback_shows_the_line_of_the_caller_and_one_of_the_package(self):
        for call in (lambda: archfs.mount("/nowhere.sqfs"), lambda: archfs.pack("/nowhere", "x.sqfs")):
            # assertRaises clears the traceback.
            frames = []
            try:
                call()
            except archfs.MissingFile as error:
                frames = [os.path.basename(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
            self.assertEqual(frames[-2:], ["test_errors.py", "_errors.py"])

    def test_the_version_is_that_of_the_program(self):
        self.assertEqual(f"archfs {archfs.__version__}\n", run("--version"))
        with unittest.mock.patch("importlib.metadata.version", side_effect=importlib.metadata.PackageNotFoundError):
            self.assertEqual(f"archfs {archfs.__version__}\n", run("--version"))
        self.assertFalse(hasattr(archfs, "no_such_name"))

    def test_a_timeout(self):
        slow = self.program('[ "$1" != mount ] || exec sleep 60; exit 5')
        with unittest.mock.patch.dict(os.environ, ARCHFS_EXECUTABLE=slow):
            error = self.failing(archfs.TimedOut, archfs.mount, self.image, timeout=0.2)
        self.assertIsInstance(error, TimeoutError)
        self.assertEqual(error.status, 6)

    def program(self, line):
        program = os.path.join(self.work, "program")
        with open(program, "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\n{line}\n")
        os.chmod(program, 0o755)
        return program

    def test_messages_are_read_after_a_part_that_is_only_color(self):
        line = r"printf '\033[0m' >&2; sleep 0.3; echo 'archfs: error: late' >&2; exit 1"
        with unittest.mock.patch.dict(os.environ, ARCHFS_EXECUTABLE=self.program(line)):
            error = self.failing(archfs.Error, archfs.mount, self.image)
        self.assertEqual(error.message, "late")

    def test_a_program_that_is_killed_or_says_nothing(self):
        with unittest.mock.patch.dict(os.environ, ARCHFS_EXECUTABLE=self.program("kill -9 $$")):
            error = self.failing(archfs.Error, archfs.mount, self.image)
            self.assertEqual((error.status, str(error)), (137, "signal 9 killed archfs"))
        with unittest.mock.patch.dict(os.environ, ARCHFS_EXECUTABLE=self.program("exit 4")):
            self.failing(archfs.CannotMount, archfs.mount, self.image)
        # It reports success, but nothing is mounted.
        with unittest.mock.patch.dict(os.environ, ARCHFS_EXECUTABLE=self.program("exit 0")):
            self.failing(archfs.Error, archfs.mount, self.image)

    def test_warnings_go_to_the_logger_and_normal_output_does_not(self):
        with self.assertLogs("archfs", logging.INFO) as told, archfs.mount(self.image, self.tar):
            pass
        levels = {record.levelno: record.getMessage() for record in told.records}
        self.assertIn("mounted 2 archives", levels[logging.INFO])
        self.assertIn("hid", levels[logging.WARNING])
        with self.assertNoWarnings(), archfs.mount(self.image, at=self.mount_point):
            with archfs.mount(self.image, at=self.mount_point):
                pass

    def assertNoWarnings(self):
        test = self

        class Watch(logging.Handler):
            def __enter__(self):
                logging.getLogger("archfs").addHandler(self)

            def __exit__(self, *_):
                logging.getLogger("archfs").removeHandler(self)

            def emit(self, record):
                test.assertLess(record.levelno, logging.WARNING, record.getMessage())

        return Watch()

    def test_another_child_does_not_block_mount(self):
        """The child keeps copies of the descriptors open."""
        child = []
        real = subprocess.Popen.__init__

        def start(*arguments, **options):
            pid = os.fork()
            if pid == 0:
                signal.pause()
            child.append(pid)
            real(*arguments, **options)

        with unittest.mock.patch("subprocess.Popen.__init__", start):
            with archfs.mount(self.image) as root:
                self.assert_readable(root)
        for pid in child:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self.assertNotIn(str(root), mounted())
