#!/usr/bin/env python3
"""Reads an archive with archfs or with a reference program, and returns the tree of files that it shows.

    readers.py walk DIRECTORY      prints the tree of a directory as JSON
    readers.py tarfile TAR         prints the tree of a tar, as Python's tarfile reads it
    readers.py zipfile ZIP         prints the tree of a ZIP archive, as Python's zipfile reads it

The program `compare` uses the functions. They start this file for work that needs a time limit or a namespace.
"""

import dataclasses
import hashlib
import json
import os
import posixpath
import resource
import signal
import stat
import subprocess
import sys
import tarfile
import time
import zipfile

SECONDS = 60
# Of each reference, bytes.
ADDRESS_SPACE = 4 << 30
# Directories in a path. A walk takes time in proportion to the square of this.
DEPTH = 2500
BLOCK = 64 << 10
ZEROS = bytes(BLOCK)
# The times that ext4 can store. A reference that extracts to ext4 replaces others by the nearest of these.
EARLIEST, LATEST = -(1 << 31), (1 << 34) - (1 << 31) - 1
# How bsdtar and unzip, and 7z, show a date of zeros in a ZIP archive, which is no date.
NO_DATE = {312768000, 315446400}
ENVIRONMENT = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8", "TZ": "UTC0", "PYTHONUTF8": "1"}
DECOMPRESS = {
    b"\x1f\x8b": ["gzip", "-dc"],
    b"BZh": ["bzip2", "-dc"],
    b"\xfd7zXZ\0": ["xz", "-dc"],
    b"\x28\xb5\x2f\xfd": ["zstd", "-dcq", "--long=31"],
    b"\x04\x22\x4d\x18": ["lz4", "-dcq"],
    b"\x02\x21\x4c\x18": ["lz4", "-dcq"],
    b"\x50\x2a\x4d\x18": ["lz4", "-dcq"],
    b"LZIP": ["lzip", "-dc"],
    b"\x5d\0\0": ["xz", "-dc", "--format=lzma"],
}
KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink", stat.S_IFIFO: "fifo",
         stat.S_IFCHR: "character device", stat.S_IFBLK: "block device", stat.S_IFSOCK: "socket"}


@dataclasses.dataclass
class Entry:
    """What a reader shows at a path. None: the reader does not know the value."""

    kind: str
    mode: int = None
    mtime: int = None
    size: int = None
    digest: str = None
    target: str = None
    device: int = None


class NotRead(Exception):
    """The program ended with an error: the archive is damaged, or has another format."""


class Failure(Exception):
    """The program crashed, or exceeded the time limit."""


# -- programs ----------------------------------------------------------------------------------------------------------


def run(command, good=(0,), limit=ADDRESS_SPACE, output=subprocess.PIPE, bad=None):
    """Standard output of a command. Raises NotRead for an exit status that is not in `good`, and for the text `bad`."""
    status, out, err = execute(command, limit, output)
    if status is None:
        raise Failure(f"{command[0]}: no end within {SECONDS} s")
    if status < 0 or status in (101, 134):
        raise Failure(f"{command[0]}: exit status {status}: {last_lines(err)}")
    if status not in good or (bad and bad in out + err):
        raise NotRead(f"exit status {status}: {last_lines(err)}")
    return out


def execute(command, limit=None, output=subprocess.PIPE, umask=0):
    """The exit status, standard output and standard error of a command. The status is None after the time limit."""

    def prepare():
        os.umask(umask)
        if limit:
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE, env=ENVIRONMENT,
                          start_new_session=True, preexec_fn=prepare) as running:
        try:
            out, err = running.communicate(timeout=SECONDS)
            return running.returncode, out, err
        except subprocess.TimeoutExpired:
            stop(running)
            return None, b"", b""


def stop(running):
    """Ends a command and its children. SIGTERM lets archfs unmount."""
    for number in signal.SIGTERM, signal.SIGKILL:
        os.killpg(running.pid, number)
        try:
            running.communicate(timeout=5)
            return
        except subprocess.TimeoutExpired:
            pass


def last_lines(err, count=3):
    lines = [line for line in err.decode(errors="replace").splitlines() if line.strip() and "hint:" not in line]
    return " / ".join(lines[-count:])[:400]


def remove(directory):
    """Removes a directory that was extracted, also one without write permission or with very long paths."""
    if os.geteuid():
        subprocess.run(["chmod", "-R", "u+rwx", directory], check=False, stderr=subprocess.DEVNULL)
    subprocess.run(["rm", "-rf", directory], check=False)


# -- trees -------------------------------------------------------------------------------------------------------------


def digest(read_at, size, extents):
    """A checksum of the size and of all blocks that are not zeros. Holes therefore count as the zeros that they are."""
    total = hashlib.sha256(b"%d" % size)
    done = 0
    for start, end in sorted(extents):
        at = max(done, start // BLOCK * BLOCK)
        while at < min(end, size):
            block = read_at(min(BLOCK, size - at), at)
            if block != ZEROS[:len(block)]:
                total.update(b"%d:" % at + block)
            at += BLOCK
        done = max(done, at)
    return total.hexdigest()


def data_extents(file, size):
    """The ranges of an open file that are not holes."""
    at = 0
    while at < size:
        try:
            start = os.lseek(file, at, os.SEEK_DATA)
        except OSError:
            return
        at = os.lseek(file, start, os.SEEK_HOLE)
        yield start, at


def file_digest(name, directory, size):
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=directory)
        try:
            extents = list(data_extents(file, size))
            return digest(lambda length, at: os.pread(file, length, at), size, extents)
        finally:
            os.close(file)
    except OSError as error:
        return f"error: {error.strerror}"


def open_directory(root, path):
    """A descriptor of a directory below `root`. Its path may be longer than PATH_MAX."""
    directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    for name in filter(None, path.split("/")):
        below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
        os.close(directory)
        directory = below
    return directory


def walk(root):
    """The tree of a directory, without its root."""
    found, waiting = {}, [""]
    while waiting:
        above = waiting.pop()
        if above.count("/") > DEPTH:
            raise NotRead(f"more than {DEPTH} directories in one path")
        try:
            directory = open_directory(root, above)
            try:
                below = {name: described(name, directory) for name in sorted(os.listdir(directory))}
            finally:
                os.close(directory)
        except OSError as error:
            found.setdefault(above, Entry("directory")).digest = f"error: {error.strerror}"
            continue
        below = {f"{above}/{name}".lstrip("/"): entry for name, entry in below.items()}
        waiting += [path for path, entry in below.items() if entry.kind == "directory"]
        found |= below
    return found


def described(name, directory):
    """What `lstat` and reading show of a name in an open directory."""
    about = os.lstat(name, dir_fd=directory)
    entry = Entry(KINDS[stat.S_IFMT(about.st_mode)], stat.S_IMODE(about.st_mode), about.st_mtime_ns // 10**9)
    if entry.kind == "file":
        entry.size, entry.digest = about.st_size, file_digest(name, directory, about.st_size)
    elif entry.kind == "symlink":
        entry.target, entry.mode = os.readlink(name, dir_fd=directory), None
    elif "device" in entry.kind:
        entry.device = about.st_rdev
    return entry


def to_json(tree):
    return json.dumps({path: dataclasses.astuple(entry) for path, entry in tree.items()})


def from_json(text):
    return {path: Entry(*fields) for path, fields in json.loads(text).items()}


def extracted(directory, begun):
    """The tree of a directory that a program extracted since `begun`, without what the file system cannot hold."""
    tree = walk(directory)
    for entry in tree.values():
        if begun - 1 <= entry.mtime <= time.time():
            # The program set no time: for a directory, because the archive has no entry for it.
            entry.mtime = None
            if entry.kind == "directory":
                entry.mode = None
        elif entry.mtime in {EARLIEST, LATEST} | NO_DATE:
            entry.mtime = None
        if os.geteuid() and entry.mode is not None:
            entry.mode &= 0o777
    return tree


def clean(name):
    return posixpath.normpath("/" + name).lstrip("/")


def add(tree, path, entry):
    """Adds an entry and the directories above it. The last entry with a path counts, but a directory stays one."""
    if not path or (path in tree and tree[path].kind == "directory" and entry.kind != "directory"):
        return
    above = posixpath.dirname(path)
    while above:
        if above not in tree or tree[above].kind != "directory":
            tree[above] = Entry("directory")
        above = posixpath.dirname(above)
    tree[path] = entry


# -- Python's modules --------------------------------------------------------------------------------------------------


def tarfile_tree(path):
    tree = {}
    with tarfile.open(path, "r:", errors="surrogateescape") as archive:
        for member in archive:
            add(tree, clean(member.name), tarfile_entry(archive, member))
    return tree


def tarfile_entry(archive, member):
    if member.islnk():
        member = archive._find_link_target(member)  # tarfile has no other way to find the earlier member of that name
    kinds = {tarfile.DIRTYPE: "directory", tarfile.SYMTYPE: "symlink", tarfile.FIFOTYPE: "fifo",
             tarfile.CHRTYPE: "character device", tarfile.BLKTYPE: "block device"}
    entry = Entry(kinds.get(member.type, "file"), member.mode & 0o7777, int(member.mtime // 1))
    if entry.kind == "symlink":
        entry.target, entry.mode = member.linkname, None
    elif "device" in entry.kind:
        entry.device = os.makedev(member.devmajor, member.devminor)
    elif entry.kind == "file":
        stream = archive.extractfile(member)
        extents = [(0, member.size)] if member.sparse is None else [(at, at + size) for at, size in member.sparse]

        def read_at(length, at):
            stream.seek(at)
            return stream.read(length)

        entry.size, entry.digest = member.size, digest(read_at, member.size, extents)
    return entry


def zipfile_tree(path):
    tree = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            add(tree, clean(member.filename), zipfile_entry(archive, member))
    return tree


def zipfile_entry(archive, member):
    mode = member.external_attr >> 16 if member.create_system == 3 else 0
    kind = "directory" if member.is_dir() else "symlink" if stat.S_ISLNK(mode) else "file"
    entry = Entry(kind, stat.S_IMODE(mode) or None)
    if entry.kind == "symlink":
        entry.target, entry.mode = os.fsdecode(archive.read(member)), None
    elif entry.kind == "file":
        contents = archive.read(member)
        entry.size = len(contents)
        entry.digest = digest(lambda length, at: contents[at:at + length], entry.size, [(0, entry.size)])
    return entry


def by_module(name):
    """A reference that runs in a process of its own, because its time and memory are limited."""

    def read(archive, _scratch):
        return from_json(run([sys.executable, __file__, name, archive]))

    return read


# -- programs that extract ---------------------------------------------------------------------------------------------


def by_program(command, good=(0,), bad=None, defaults=()):
    """A reference that extracts. In `command`, A stands for the archive and D for the directory.

    `defaults` are the modes of files without a mode in the archive.
    """

    def read(archive, scratch):
        directory = os.path.join(scratch, "reference")
        os.mkdir(directory)
        try:
            # 7z gives a member without a time that of the archive, which is a new copy.
            begun = int(os.stat(archive).st_mtime)
            names = {"A": archive, "D": directory, "-oD": f"-o{directory}"}
            run([names.get(word, word) for word in command], good, bad=bad)
            tree = extracted(directory, begun)
            for entry in tree.values():
                if entry.mode in defaults:
                    entry.mode = None
            return tree
        finally:
            remove(directory)

    return read


def kernel(archive, scratch):
    """The kernel's squashfs, mounted in a namespace that ends with the process."""
    if os.geteuid():
        raise NotRead("only root can mount an image")
    directory = os.path.join(scratch, "kernel")
    os.makedirs(directory, exist_ok=True)
    script = 'mount -t squashfs -o loop,ro "$1" "$2" && exec "$3" "$4" walk "$2"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", archive, directory, sys.executable, __file__]
    return from_json(run(command, limit=None))


def unsquashfs(archive, scratch):
    directory = os.path.join(scratch, "unsquashfs")
    try:
        run(["unsquashfs", "-no-progress", "-quiet", "-no-xattrs", "-dest", directory, archive])
        return extracted(directory, int(time.time()) + SECONDS)
    finally:
        if os.path.exists(directory):
            remove(directory)


def decompressed(archive, scratch):
    """The path of a tar without compression."""
    with open(archive, "rb") as file:
        head = file.read(6)
    for magic, command in DECOMPRESS.items():
        if head.startswith(magic):
            plain = os.path.join(scratch, "plain.tar")
            with open(plain, "wb") as output:
                run([*command, archive], good=(0, 2) if command[0] == "gzip" else (0,), output=output)
            return plain
    return archive


def on_plain_tar(read):
    return lambda archive, scratch: read(decompressed(archive, scratch), scratch)


TAR = ["tar", "-x", "-p", "--numeric-owner", "--force-local", "-f", "A", "-C", "D"]
BSDTAR = ["bsdtar", "-x", "-p", "--no-fflags", "--no-acls", "--no-xattrs", "-f", "A", "-C", "D"]
REFERENCES = {
    "tar": {
        "tar": on_plain_tar(by_program(TAR)),
        "tar -i": on_plain_tar(by_program([*TAR, "-i"])),
        "bsdtar": by_program(BSDTAR),
        "tarfile": on_plain_tar(by_module("tarfile")),
    },
    "zip": {
        "unzip": by_program(["unzip", "-o", "-K", "-P", "", "A", "-d", "D"], good=(0, 1),
                            bad=b"skipping:", defaults=(0o666, 0o777)),
        "7z": by_program(["7z", "x", "-tzip", "-y", "-bd", "-p", "-oD", "A"], good=(0, 1), defaults=(0o666, 0o777)),
        "bsdtar": by_program(BSDTAR, defaults=(0o664, 0o775)),
        "zipfile": by_module("zipfile"),
    },
    "squashfs": {"kernel": kernel, "unsquashfs": unsquashfs},
}
PROGRAMS = ["tar", "bsdtar", "unzip", "7z", "unsquashfs", "unshare", *(command[0] for command in DECOMPRESS.values())]


# -- archfs ------------------------------------------------------------------------------------------------------------


class Archfs:
    """The program under test. Its methods raise NotRead if it refuses the archive, and Failure if it crashes."""

    def __init__(self, path):
        self.path = path

    def mounted(self, archive, scratch):
        """The tree of a mount in a namespace, which ends with the command."""
        directory = os.path.join(scratch, "mounted")
        os.makedirs(directory, exist_ok=True)
        return from_json(self.call(["run", "--private", archive, directory, "--", sys.executable, __file__, "walk",
                                    directory], refused=123))

    def extracted(self, archive, scratch):
        """The tree that `archfs extract` makes, or None if the file system cannot hold a file of that size."""
        directory = os.path.join(scratch, "extracted")
        try:
            begun = int(time.time())
            self.call(["extract", archive, directory])
            return extracted(directory, begun)
        except Failure as failure:
            if "exit status 1:" in str(failure) and "File too large" in str(failure):
                return None
            raise
        finally:
            if os.path.exists(directory):
                remove(directory)

    def verify(self, archive):
        self.call(["verify", archive])

    def call(self, arguments, refused=3):
        status, out, err = execute([self.path, *arguments], umask=0o022)
        said = last_lines(err)
        if status is None:
            raise Failure(f"archfs {arguments[0]}: no end within {SECONDS} s")
        if b"panicked" in err or status not in (0, refused):
            raise Failure(f"archfs {arguments[0]}: exit status {status}: {said}")
        if status:
            # `verify` lists damage on standard output.
            raise NotRead(f"{arguments[0]}: {last_lines(out) if arguments[0] == 'verify' and out else said}")
        return out


def main():
    read = {"walk": walk, "tarfile": tarfile_tree, "zipfile": zipfile_tree}[sys.argv[1]]
    sys.stdout.write(to_json(read(sys.argv[2])))


if __name__ == "__main__":
    main()
