"""archfs:// for fsspec, which reads archives without a mount. The reference is fsspec's own file system on the source
directory.
"""

import contextlib
import errno
import functools
import gc
import http.server
import multiprocessing
import os
import pickle
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import traceback
import unittest
import unittest.mock
import zipfile
import zlib

import archfs
from stage import BIG, Stage, wait_until

try:
    import fsspec
    from archfs.filesystem import ArchiveFileSystem

    fsspec.register_implementation("archfs", ArchiveFileSystem, clobber=True)
except ModuleNotFoundError:
    if os.environ.get("CI"):
        raise
    raise unittest.SkipTest("no fsspec")


def servers(archive):
    """The processes that read an archive."""
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if b"--inherited" in words and words[words.index(b"--") + 1 :] == [os.fsencode(archive), b""]:
            found.append(int(process))
    return found


def read_all(archive):
    """In another process: the contents of all files, and the server that it used."""
    fs = fsspec.filesystem("archfs", fo=archive)
    return fs.cat([path for path in fs.find("") if path not in ("dangling", "to-folder")]), servers(archive)


class Ranges(http.server.SimpleHTTPRequestHandler):
    """Serves files with single ranges, which the base class lacks."""

    def do_GET(self):
        path = self.translate_path(self.path)
        if not os.path.isfile(path):
            self.send_error(404)
            return
        with open(path, "rb") as file:
            data = file.read()
        first, _, last = self.headers.get("Range", "bytes=0-").partition("=")[2].partition("-")
        start, end = int(first), min(int(last or len(data)), len(data) - 1)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{end}/{len(data)}")
        self.send_header("Content-Length", str(end + 1 - start))
        self.send_header("ETag", f'"{zlib.crc32(data)}"')
        self.end_headers()
        self.wfile.write(data[start : end + 1])

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def served(directory):
    """The URL of a server for the files of `directory`."""
    handler = functools.partial(Ranges, directory=directory)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def descriptors():
    """What the descriptors of this process are open at."""
    found = {}
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            found[number] = os.readlink(f"/proc/self/fd/{number}")
        except OSError:  # That of the listing.
            pass
    return found


class FileSystemTest(Stage):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        os.symlink("folder/data", os.path.join(cls.source, "link"))
        os.symlink("folder", os.path.join(cls.source, "to-folder"))
        os.symlink("none", os.path.join(cls.source, "dangling"))
        os.mkdir(os.path.join(cls.source, "empty"))
        with open(os.path.join(os.fsencode(cls.source), b"odd \xff"), "wb") as file:
            file.write(b"odd")
        archfs.pack(cls.source, cls.image, force=True)
        archfs.pack(cls.source, cls.tar, force=True)

    def file_system(self, archive=None, **options):
        # Without fsspec's own cache of instances.
        return fsspec.filesystem("archfs", fo=archive or self.image, skip_instance_cache=True, **options)

    def test_shows_what_the_local_file_system_shows(self):
        local = fsspec.filesystem("file")

        def below(paths):
            return sorted(os.path.relpath(path, self.source) for path in paths)

        for archive in (self.image, self.tar):
            fs = self.file_system(archive)
            for method in ("find", "glob", "ls"):
                pattern = {"glob": "/**"}.get(method, "")
                expected = below(getattr(local, method)(self.source + pattern))
                found = getattr(fs, method)(pattern.strip("/"), **({"detail": False} if method == "ls" else {}))
                self.assertEqual(sorted(found), [path for path in expected if path != "."], method)
            for path in ("hello", "folder", "folder/data", "link", "to-folder", "empty", os.fsdecode(b"odd \xff")):
                ours, theirs = fs.info(path), local.info(os.path.join(self.source, path))
                for key in ("type", "mode", "uid", "gid", "islink", "size"):
                    if key != "size" or theirs["type"] == "file":
                        self.assertEqual(ours[key], theirs[key], (path, key))
                self.assertEqual(int(ours["mtime"]), int(theirs["mtime"]))
                self.assertTrue(fs.exists(path))
                self.assertEqual(fs.isdir(path), os.path.isdir(os.path.join(self.source, path)))
            self.assertEqual(fs.info("link")["destination"], "folder/data")
            self.assertEqual((fs.info("dangling")["type"], fs.exists("none")), ("other", False))
            self.assertEqual(fs.info("")["type"], "directory")
            self.assertEqual(fs.ls("hello", detail=False), ["hello"])

    def test_files_are_read_byte_for_byte(self):
        random.seed(1)
        for archive in (self.image, self.tar):
            fs = self.file_system(archive)
            self.assertEqual(fs.cat(["hello", "folder/data"]), {"hello": b"hello\n", "folder/data": BIG})
            self.assertEqual(fs.cat("link"), BIG)
            self.assertEqual(fs.cat(os.fsdecode(b"odd \xff")), b"odd")
            for start, end in ((5, 9), (None, -1), (-10, None), (len(BIG), None), (7, 3), (0, 1 << 62)):
                self.assertEqual(fs.cat_file("folder/data", start, end), BIG[start:end], (start, end))
            self.assertEqual(fs.cat_ranges(["hello", "link"], [1, 2], [3, 4]), [b"el", BIG[2:4]])
            with fs.open("folder/data") as file:
                for _ in range(200):
                    start = random.randrange(len(BIG) + 10)
                    file.seek(start)
                    length = random.choice((0, 1, 100, 5000, 70_000))
                    self.assertEqual(file.read(length), BIG[start : start + length])
                self.assertEqual((file.seek(-3, os.SEEK_END), file.read()), (len(BIG) - 3, BIG[-3:]))
                with self.assertRaises(ValueError):
                    file.seek(-1)
            with fs.open("hello", "rt") as file:
                self.assertEqual(file.read(), "hello\n")
            with fs.open("folder/data") as file:
                self.assertEqual(file.read(), BIG)
            with fsspec.open(f"archfs://folder/data::{archive}") as file:
                self.assertEqual(file.read(10), BIG[:10])
            self.assertEqual(fsspec.get_mapper(f"archfs://folder::{archive}")["data"], BIG)

    def test_a_chain_reads_an_archive_at_a_url(self):
        with served(self.work) as url:
            chain = f"archfs://folder/data::{url}/data.sqfs"
            with fsspec.open(chain) as file:
                self.assertEqual(file.read(), BIG)
            # Options of the file system for https:// do not reach archfs.
            with self.assertRaisesRegex(archfs.UsageError, "options of http:// have no effect: cookies"):
                fsspec.open(chain, http={"cookies": {}}).open()
        with self.assertRaisesRegex(archfs.Error, "^s3://none/data.sqfs: ") as caught:
            # Nothing listens there.
            with unittest.mock.patch.dict(os.environ, AWS_ENDPOINT_URL="http://127.0.0.1:1", AWS_ACCESS_KEY_ID=""):
                self.file_system("none/data.sqfs", target_protocol="s3")
        self.assertIn("cannot connect", str(caught.exception))
        with self.assertRaisesRegex(archfs.UsageError, "cannot read an archive from memory://"):
            fsspec.open("archfs://hello::memory://data.sqfs").open()

    def test_large_files_take_several_replies(self):
        data = random.Random(1).randbytes(5 << 20)
        source = os.path.join(self.work, "large")
        os.mkdir(source)
        with open(os.path.join(source, "data"), "wb") as file:
            file.write(data)
        image = os.path.join(self.work, "large.sqfs")
        archfs.pack(source, image)
        fs = self.file_system(image)
        self.assertEqual(fs.cat("data"), data)
        self.assertEqual(fs.cat_file("data", 3, -5), data[3:-5])
        with fs.open("data") as file:
            self.assertEqual(file.read(), data)
            file.seek(1 << 20)
            self.assertEqual(file.read(3 << 20), data[1 << 20 : 4 << 20])

    def test_errors_are_those_of_a_file_system(self):
        fs = self.file_system()
        for path, expected in (("none", FileNotFoundError), ("folder", IsADirectoryError), ("hello/x", NotADirectoryError)):
            with self.assertRaises(expected) as caught:
                fs.cat_file(path)
            self.assertEqual(caught.exception.filename, path)
            with self.assertRaises(expected):
                fs.open(path)
        with self.assertRaises(OSError) as caught:
            fs.open("hello", "wb")
        self.assertEqual(caught.exception.errno, errno.EROFS)
        with self.assertRaises(archfs.MissingFile):
            self.file_system(os.path.join(self.work, "none.sqfs"))
        with self.assertRaises(archfs.DamagedArchive):
            self.file_system(os.path.join(self.source, "hello"))
        with self.assertRaises(archfs.UsageError):
            fsspec.filesystem("archfs")
        with self.assertRaises(archfs.UsageError):
            self.file_system("x.sqfs", target_protocol="gcs")
        self.assertEqual(fs.cat("hello"), b"hello\n")

    def test_damage_is_an_input_output_error(self):
        damaged = os.path.join(self.work, "damaged.sqfs")
        archfs.pack(self.source, damaged, compressor="gzip", force=True)
        with open(damaged, "r+b") as file:
            file.seek(200)
            file.write(b"\xff" * 60)
        fs = self.file_system(damaged)
        with self.assertRaises(OSError) as caught:
            fs.cat("folder/data")
        self.assertEqual(caught.exception.errno, errno.EIO)
        self.assertIn("folder/data", str(caught.exception))

    def test_several_archives_and_options(self):
        other = os.path.join(self.work, "other")
        os.mkdir(other)
        with open(os.path.join(other, "hello"), "wb") as file:
            file.write(b"later\n")
        later = os.path.join(self.work, "later.tar")
        archfs.pack(other, later)
        fs = self.file_system([self.image, later])
        self.assertEqual((fs.cat("hello"), fs.cat("folder/data")), (b"later\n", BIG))
        with open(self.image, "rb") as file, open(os.path.join(self.work, "behind"), "wb") as behind:
            behind.write(bytes(4096) + file.read())
        fs = self.file_system(behind.name, offset=4096, cache="64M")
        self.assertEqual(fs.cat("hello"), b"hello\n")

    def test_threads_and_forked_children_read_at_once(self):
        fs = self.file_system()
        wrong = []

        def read():
            for _ in range(50):
                if fs.cat("folder/data") != BIG or fs.cat("hello") != b"hello\n":
                    wrong.append(1)

        threads = [threading.Thread(target=read) for _ in range(6)]
        for thread in threads:
            thread.start()
        children = []
        for _ in range(4):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    read()
                    status = len(wrong)
                finally:
                    os._exit(status)
            children.append(child)
        for thread in threads:
            thread.join()
        self.assertEqual([os.waitpid(child, 0)[1] for child in children], [0] * 4)
        self.assertEqual((wrong, len(servers(self.image))), ([], 1))

    def test_spawned_processes_share_the_server_which_exits_after_them(self):
        image = os.path.join(self.work, "shared.sqfs")
        archfs.pack(self.source, image)
        with multiprocessing.get_context("spawn").Pool(3) as pool:
            results = pool.map(read_all, [image] * 6)
        expected = self.file_system().cat(["folder/data", "hello", "link", os.fsdecode(b"odd \xff")])
        self.assertTrue(all({**contents, **expected} == contents for contents, _ in results))
        self.assertEqual(len({server for _, found in results for server in found}), 1)
        wait_until("the server has exited", lambda: not servers(image), 20)

    def test_stored_files_are_read_without_the_server(self):
        data = {f"n{number}": random.Random(number).randbytes(150_000 + number) for number in range(30)}
        source = os.path.join(self.work, "stored")
        os.makedirs(os.path.join(source, "class"))
        for name, contents in data.items():
            with open(os.path.join(source, "class", name), "wb") as file:
                file.write(contents)
        with open(os.path.join(source, "text"), "wb") as file:
            file.write(b"compressed " * 10_000)
        for archive in ("stored.sqfs", "stored.tar"):
            archive = os.path.join(self.work, archive)
            archfs.pack(source, archive)
            fs = self.file_system(archive)
            self.wait_for_tables(fs, "class/n0", data["n0"])
            self.assertFalse(any(os.get_inheritable(one) for one in fs._reader._direct._archives))
            (server,) = servers(archive)
            os.kill(server, signal.SIGSTOP)
            try:
                for name, contents in data.items():
                    self.assertEqual(fs.cat(f"class/{name}"), contents)
                    self.assertEqual(fs.cat_file(f"class/{name}", 140_000, 150_005), contents[140_000:150_005])
                    with fs.open(f"class/{name}") as file:
                        self.assertEqual(file.read(), contents)
                        file.seek(131_000)
                        self.assertEqual(file.read(200), contents[131_000:131_200])
                child = os.fork()
                if child == 0:
                    os._exit(0 if fs.cat("class/n7") == data["n7"] else 1)
                self.assertEqual(os.waitpid(child, 0)[1], 0)
            finally:
                os.kill(server, signal.SIGCONT)
            # What is compressed, missing or reached by a link is asked for.
            self.assertEqual(fs.cat("text"), b"compressed " * 10_000)
            with self.assertRaises(FileNotFoundError):
                fs.cat("class/none")
            with self.assertRaises(IsADirectoryError):
                fs.cat("class")
            # The server notices that an archive was written to, and so does the client.
            with open(archive, "r+b") as file:
                file.seek(-1, os.SEEK_END)
                file.write(b"x")
            os.utime(archive, ns=(1, 1))
            with self.assertRaises(OSError) as caught:
                fs.cat("class/n1")
            self.assertEqual(caught.exception.errno, errno.EIO)

    def test_an_archive_whose_time_was_set_back_is_an_error(self):
        archive = os.path.join(self.work, "set-back.tar")
        archfs.pack(self.source, archive)
        fs = self.file_system(archive)
        self.wait_for_tables(fs, "hello", b"hello\n")
        # A new name is no change.
        os.link(archive, archive + ".link")
        self.assertEqual(fs.cat("hello"), b"hello\n")
        status = os.stat(archive)
        while True:  # The clock of the change time may not have moved on yet.
            with open(archive, "r+b") as file:
                file.write(b"\xff" * 4096)
            os.utime(archive, ns=(status.st_atime_ns, status.st_mtime_ns))
            if os.stat(archive).st_ctime_ns != status.st_ctime_ns:
                break
        with self.assertRaises(OSError) as caught:
            fs.cat("hello")
        self.assertEqual(caught.exception.errno, errno.EIO)

    def wait_for_tables(self, fs, path, contents):
        """Reads the file until reads are direct."""

        def has_tables():
            for _ in range(100):
                self.assertEqual(fs.cat(path), contents)
            return fs._reader._direct is not None and fs._reader._direct.has_archives

        wait_until("there are tables", has_tables)

    def in_child(self, function):
        """Calls `function` in a forked child, which must return."""
        child = os.fork()
        if child == 0:
            status = 1
            try:
                function()
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_descriptors_that_the_program_closes_or_replaces_are_fetched_again(self):
        decoy = os.path.join(self.work, "decoy")
        with open(decoy, "wb") as file:
            file.write(b"*" * (4 << 20))
        for numbers in ("closed", "replaced"):
            fs = self.file_system(self.tar)
            self.wait_for_tables(fs, "folder/data", BIG)

            def closes_all():
                before = descriptors()
                last = max(before)
                os.closerange(3, last + 1)
                if numbers == "replaced":
                    file = os.open(decoy, os.O_RDONLY)
                    for number in before:
                        if number > 2:
                            os.dup2(file, number)
                for _ in range(3):
                    self.assertEqual(fs.cat("folder/data"), BIG)
                    self.assertEqual(fs.cat("hello"), b"hello\n")
                    self.assertEqual(fs.info("hello")["size"], 6)
                self.wait_for_tables(fs, "folder/data", BIG)
                fs._reader.__del__()
                gc.collect()
                kept = [number for number, target in descriptors().items() if target == decoy]
                expected = [number for number in before if number > 2 and numbers == "replaced"]
                self.assertLessEqual(set(expected), set(kept))

            self.in_child(closes_all)

    def test_a_file_at_the_number_of_a_table_stays_open(self):
        fs = self.file_system(self.tar)
        self.wait_for_tables(fs, "folder/data", BIG)

        def replaces_tables():
            file = os.open(self.tar, os.O_RDONLY)
            tables = [number for number, target in descriptors().items() if "memfd" in target]
            for number in tables:
                os.dup2(file, number)
            fs._reader.__del__()
            gc.collect()
            for number in tables:
                self.assertTrue(os.path.samestat(os.fstat(number), os.fstat(file)))

        self.in_child(replaces_tables)

    def test_a_read_that_failed_is_checked_again(self):
        contents = random.Random(7).randbytes(400_000)
        wrong = contents[:-1] + b"?"

        class Reader:
            def read(self, path, offset, size):
                return wrong[offset:]

        checksum = 1 << 32 | zlib.crc32(contents)
        file = archfs.filesystem._File(Reader(), "name", wrong[:1000], len(wrong), checksum)
        self.assertEqual(file.read(1000), wrong[:1000])
        for _ in range(2):
            with self.assertRaises(OSError) as caught:
                file.readall()
            self.assertEqual((caught.exception.errno, file.tell()), (errno.EIO, 1000))

    def test_few_descriptors_are_an_error_or_no_problem_and_none_is_lost(self):
        more = [os.path.join(self.work, f"few-{number}.tar") for number in range(4)]
        for archive in more:
            archfs.pack(self.source, archive, force=True)
        for free in range(12):
            fs = self.file_system([*more, self.image])
            self.assertEqual(fs.cat("hello"), b"hello\n")

            def reads_with_few():
                before = len(descriptors())
                resource.setrlimit(resource.RLIMIT_NOFILE, (max(128, before + 50), 4096))
                used = []
                try:
                    while True:
                        used.append(os.open("/dev/null", os.O_RDONLY))
                except OSError:
                    pass
                for _ in range(free):
                    os.close(used.pop())
                for _ in range(700):
                    try:
                        self.assertEqual(fs.cat("hello"), b"hello\n")
                    except OSError as error:
                        self.assertEqual(error.errno, errno.EMFILE)
                        self.assertEqual(free, 0)
                for number in used:
                    os.close(number)
                # A connection, the tables and the archives.
                self.assertLessEqual(len(descriptors()), before + 1 + 2 + 4)
                self.wait_for_tables(fs, "hello", b"hello\n")
                self.assertLessEqual(len(descriptors()), before + 1 + 2 + 5)

            self.in_child(reads_with_few)

    def test_archives_take_few_of_a_low_limit_of_descriptors(self):
        fs = self.file_system(self.tar)

        def reads():
            resource.setrlimit(resource.RLIMIT_NOFILE, (20, 4096))
            before = len(descriptors())
            for _ in range(700):
                self.assertEqual(fs.cat("hello"), b"hello\n")
            self.assertLessEqual(len(descriptors()), before + 1)

        self.in_child(reads)

    def test_direct_reads_can_be_switched_off(self):
        with unittest.mock.patch.dict(os.environ, ARCHFS_DIRECT="off"):
            fs = self.file_system()
        for _ in range(500):
            fs.cat("folder/data")
        self.assertIsNone(fs._reader._direct)

    def test_an_instance_can_be_pickled(self):
        fs = fsspec.filesystem("archfs", fo=self.image)
        self.assertEqual(pickle.loads(pickle.dumps(fs)).cat("hello"), b"hello\n")
        self.assertEqual(fs.fsid, self.file_system().fsid)
        self.assertNotEqual(fs.fsid, self.file_system(self.tar).fsid)

    def test_a_killed_server_is_started_again(self):
        image = os.path.join(self.work, "killed.sqfs")
        archfs.pack(self.source, image)
        fs = self.file_system(image)
        with fs.open("folder/data") as file:
            for _ in range(3):
                (server,) = servers(image)
                os.kill(server, signal.SIGKILL)
                self.assertEqual(fs.cat("hello"), b"hello\n")
                self.assertEqual(file.read(300_000), BIG[file.tell() - 300_000 : file.tell()])

    def test_signals_of_a_process_group_do_not_end_the_server(self):
        image = os.path.join(self.work, "signals.sqfs")
        archfs.pack(self.source, image)
        fs = self.file_system(image)
        (server,) = servers(image)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(server, number)
        self.assertEqual(fs.cat("hello"), b"hello\n")
        self.assertEqual(servers(image), [server])

    def test_a_changed_archive_is_an_error(self):
        image = os.path.join(self.work, "changed.sqfs")
        archfs.pack(self.source, image)
        fs = self.file_system(image)
        (server,) = servers(image)
        archfs.pack(os.path.join(self.source, "folder"), image, force=True)
        # The open archive stays as it is.
        self.assertEqual(fs.cat("hello"), b"hello\n")
        os.kill(server, signal.SIGKILL)
        with self.assertRaisesRegex(archfs.Error, "changed since it was opened"):
            fs.cat("hello")
        self.assertEqual(self.file_system(image).cat("data"), BIG)

    @unittest.skipIf(os.geteuid() != 0, "needs root to be another user")
    def test_other_users_can_neither_reach_nor_replace_the_socket(self):
        fs = self.file_system()
        path = fs._reader._socket
        self.assertEqual(os.stat(os.path.dirname(path)).st_mode & 0o777, 0o700)
        code = f"""
import os, socket
os.setgroups([])
os.setgid(1234)
os.setuid(1234)
for attempt in (lambda s: s.connect({path!r}), lambda s: s.bind({path!r}), lambda s: os.unlink({path!r})):
    try:
        attempt(socket.socket(socket.AF_UNIX))
    except PermissionError:
        print("refused")
"""
        output = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True).stdout
        self.assertEqual(output, "refused\n" * 3)
        self.assertEqual(fs.cat("hello"), b"hello\n")

    @unittest.skipIf(os.geteuid() != 0, "needs root to be another user")
    def test_another_user_is_not_served_and_does_not_keep_the_server(self):
        image = os.path.join(self.work, "strangers.sqfs")
        archfs.pack(self.source, image)
        fs = self.file_system(image)
        # The rights of root for files, as if the directory were open to others.
        code = f"""
import ctypes, os, socket, time
os.seteuid(1234)
ctypes.CDLL(None).setfsuid(0)
while True:
    client = socket.socket(socket.AF_UNIX)
    client.connect({fs._reader._socket!r})
    print(client.recv(1), flush=True)
    time.sleep(0.2)
"""
        stranger = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            self.assertEqual(stranger.stdout.readline(), b"b''\n")
            self.assertEqual(fs.cat("hello"), b"hello\n")
            path = fs._reader._socket
            fs._reader._forget()
            wait_until("the server has exited", lambda: not servers(image), 20)
            self.assertFalse(os.path.exists(path))
        finally:
            stranger.kill()
            stranger.communicate()

    def test_a_socket_that_was_left_behind_is_replaced(self):
        image = os.path.join(self.work, "left.sqfs")
        archfs.pack(self.source, image)
        fs = self.file_system(image)
        (server,) = servers(image)
        os.kill(server, signal.SIGKILL)
        wait_until("the server has ended", lambda: not servers(image))
        self.assertTrue(os.path.exists(fs._reader._socket))
        with multiprocessing.get_context("spawn").Pool(4) as pool:
            results = pool.map(read_all, [image] * 8)
        self.assertEqual(len({tuple(sorted(contents)) for contents, _ in results}), 1)
        self.assertEqual(fs.cat("hello"), b"hello\n")
        self.assertEqual(len(servers(image)), 1)

    def test_nonsense_closes_only_its_connection(self):
        fs = self.file_system()
        for message in (b"\xff" * 4, b"\x11\0\0\0" + b"\x09" * 17, b"\x01"):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(fs._reader._socket)
                client.sendall(message)
                client.shutdown(socket.SHUT_WR)
                self.assertEqual(client.recv(1), b"")
        self.assertEqual(fs.cat("hello"), b"hello\n")

    def test_whole_files_of_a_zip_archive_are_checked(self):
        """Stored members, which the server does not check: by requests, and read by the client itself."""
        archive = os.path.join(self.work, "stored.zip")
        with zipfile.ZipFile(archive, "w") as file:
            for name, data in (("small", b"small" * 1000), ("large", BIG * 2)):
                file.writestr(f"good-{name}", data)
                file.writestr(f"bad-{name}", data)
            offsets = {info.filename: info.header_offset for info in file.infolist()}
        with open(archive, "r+b") as file:
            for name in ("bad-small", "bad-large"):
                file.seek(offsets[name] + 30 + len(name) + 1500)
                file.write(b"\xff")
        for is_direct in (False, True):
            fs = self.file_system(archive)
            if is_direct:
                wait_until("direct reads", lambda: fs.cat_file("good-small") and fs._reader._direct is not None)
            for name, data in (("small", b"small" * 1000), ("large", BIG * 2)):
                good, bad = f"good-{name}", f"bad-{name}"
                self.assertEqual(fs.cat(good), data)
                with fs.open(good) as file:
                    self.assertEqual(b"".join(iter(lambda: file.read(100_000), b"")), data)
                target = os.path.join(self.work, "got")
                for read in (
                    lambda: fs.cat_file(bad),
                    lambda: fs.open(bad).read(),
                    lambda: fs.get_file(bad, target),
                    lambda: b"".join(iter(lambda file=fs.open(bad): file.read(100_000), b"")),
                ):
                    with self.subTest(name=name, is_direct=is_direct), self.assertRaises(OSError) as caught:
                        read()
                    self.assertEqual(caught.exception.errno, errno.EIO)
                    self.assertIn("checksum", str(caught.exception))
                # A part has no checksum.
                self.assertEqual(fs.cat_file(bad, 0, 1500), data[:1500])
                self.assertEqual(fs.cat_file(bad, 1501, len(data)), data[1501:])

    def test_needs_no_fuse_device(self):
        code = (
            "import fsspec; from archfs.filesystem import ArchiveFileSystem as A; fsspec.register_implementation('archfs', A);"
            f"print(fsspec.filesystem('archfs', fo={self.image!r}).cat('hello'))"
        )
        hide = "mount --bind /dev/null /dev/fuse 2>/dev/null; exec \"$0\" -c \"$1\""
        command = ["unshare", "--mount", "sh", "-c", hide, sys.executable, code]
        output = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(output.stdout, "b'hello\\n'\n", output.stderr)


if __name__ == "__main__":
    unittest.main()
