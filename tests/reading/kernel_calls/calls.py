"""Makes system calls on all kinds of files below a directory and prints the result of each.

    calls.py DIRECTORY

Each line is a call, a tab, and its result or error name. Paths are printed without DIRECTORY, so that the output
for two mounts of one image can be compared line by line.
"""

import ctypes
import errno
import fcntl
import hashlib
import mmap
import os
import stat
import struct
import sys

ROOT = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)
libc.lseek.restype = ctypes.c_longlong
libc.lseek.argtypes = [ctypes.c_int, ctypes.c_longlong, ctypes.c_int]

FILES = ["text", "blocks", "tail", "empty", "holes", "hard", "private", "group", "program", "setuid", "attributes"]
DIRECTORIES = [".", "folder", "many", "closed", "sticky"]
OTHERS = ["link", "dangling", "loop", "link-folder", "fifo", "char", "block", "socket"]
MISSING = ["none", "folder/none", "text/none", "closed/inside", "link-folder/a", "x" * 255, "x" * 256, "dangling/x"]
ALL = FILES + DIRECTORIES + OTHERS + MISSING


def shown(value):
    """A short form of `value`."""
    if isinstance(value, bytes):
        return f"{len(value)} bytes {hashlib.md5(value).hexdigest()}" if len(value) > 40 else repr(value)
    return repr(value)


def call(label, function, *arguments):
    """Makes a call and prints its result."""
    try:
        outcome = shown(function(*arguments))
    except OSError as error:
        outcome = errno.errorcode.get(error.errno, str(error.errno))
    except ValueError as error:
        outcome = f"ValueError {error}"
    label = label.replace("x" * 255, "x-255")
    print(f"{label}\t{outcome.replace(ROOT, '')}")


def checked(result):
    """The result of a function of libc."""
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


def path(name):
    return os.path.join(ROOT, name)


def opened(name, flags, use):
    """Opens the file and returns the result of `use`."""
    descriptor = os.open(path(name), flags | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return use(descriptor)
    finally:
        os.close(descriptor)


FIELDS = "mode ino nlink uid gid size rdev mtime ctime atime blocks blksize".split()


def attribute(function, name, field):
    """The stat fields of a path."""
    value = getattr(function(path(name)), "st_" + field)
    return oct(value) if field == "mode" else f"{value:.0f}"


STATX = struct.Struct("=IIQIIIHHQQ")


def statx(name, flags):
    """The statx fields, except for the inode number, which stat shows."""
    buffer = ctypes.create_string_buffer(256)
    checked(libc.statx(-100, path(name).encode(), flags, 0x7ff, buffer))
    got, _, attributes, nlink, uid, gid, mode, _, _, size = STATX.unpack_from(buffer.raw)
    return f"mask={got & 0x7ff:#x} attributes={attributes:#x} {nlink} {uid} {gid} {mode:o} {size}"


def listing(name):
    """All entries: name, type, and whether the inode number matches stat."""
    def row(entry):
        kinds = (entry.is_dir(follow_symlinks=False), entry.is_file(follow_symlinks=False), entry.is_symlink())
        return entry.name, kinds, entry.inode() == entry.stat(follow_symlinks=False).st_ino

    with os.scandir(path(name)) as entries:
        return [row(entry) for entry in entries]


def directory_positions(descriptor):
    """Lists some entries, rewinds, and continues from the earlier position of the descriptor."""
    buffer = ctypes.create_string_buffer(400)

    def names():
        length = checked(libc.syscall(217, descriptor, buffer, 400))
        found, at = [], 0
        while at < length:
            _, position, size = struct.unpack_from("=qqH", buffer.raw, at)
            found.append((buffer.raw[at + 19:at + size].split(b"\0")[0], position))
            at += size
        return found

    first = names()
    os.lseek(descriptor, first[1][1], os.SEEK_SET)
    second = names()
    rest = []
    while more := names():
        rest += more
    os.lseek(descriptor, 0, os.SEEK_SET)
    again = names()
    return [name for name, _ in first[2:3]], second[0][0] == first[2][0] if len(first) > 2 else None, \
        len({name for name, _ in second + rest}), [name for name, _ in again[2:3]]


def seek(offset, whence):
    return lambda descriptor: checked(libc.lseek(descriptor, offset, whence))


def mapped(length, offset, kind, protection):
    def use(descriptor):
        with mmap.mmap(descriptor, length, kind, protection, offset=offset) as memory:
            return memory[:]
    return use


def mapped_past_the_end(descriptor):
    """Reads a mapped page past the end of file in a child and returns the signal that kills it."""
    child = os.fork()
    if child == 0:
        end = (os.fstat(descriptor).st_size + 4095) // 4096 * 4096
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
                              ctypes.c_long]
        address = libc.mmap(None, end + 4096, 1, 1, descriptor, 0)
        ctypes.string_at(address + end, 1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def lock(kind, operation):
    def use(descriptor):
        (fcntl.flock if kind == "flock" else fcntl.lockf)(descriptor, operation | fcntl.LOCK_NB)
        return "locked"
    return use


def ioctl(request, size):
    return lambda descriptor: fcntl.ioctl(descriptor, request, bytes(size))


def sent(descriptor):
    with open(os.devnull, "wb") as out:
        return os.sendfile(out.fileno(), descriptor, 100, 5000)


def spliced(descriptor):
    read, write = os.pipe()
    try:
        moved = os.splice(descriptor, write, 3000, offset_src=10)
        return os.read(read, moved)
    finally:
        os.close(read)
        os.close(write)


def copied_range(descriptor):
    target = os.memfd_create("copy")
    try:
        return os.copy_file_range(descriptor, target, 1000)
    finally:
        os.close(target)


def executed(name):
    """Executes the file in a child and returns how it ends."""
    child = os.fork()
    if child == 0:
        try:
            os.execv(path(name), [name])
        except OSError as error:
            os._exit(error.errno)
    return os.waitpid(child, 0)[1]


def changed_to(name):
    before = os.open(".", os.O_RDONLY)
    try:
        os.chdir(path(name))
        return sorted(os.listdir("."))[:3]
    finally:
        os.fchdir(before)
        os.close(before)


def look_up():
    """Lookups and attributes."""
    for name in ALL:
        for function in (os.stat, os.lstat):
            for field in FIELDS:
                call(f"{function.__name__} {field} {name}", attribute, function, name, field)
        for label, flags in [("no-follow", 0x100), ("dont-sync", 0x4000), ("force-sync", 0x2000)]:
            call(f"statx {label} {name}", statx, name, flags)
        call(f"readlink {name}", os.readlink, path(name))
        for mode in (os.F_OK, os.R_OK, os.W_OK, os.X_OK, os.R_OK | os.X_OK):
            call(f"access {name} {mode}", access, name, mode)
        call(f"chdir {name}", changed_to, name)
        call(f"statfs free {name}", lambda: (os.statvfs(path(name)).f_bfree, os.statvfs(path(name)).f_ffree))
        call(f"statfs files {name}", lambda: os.statvfs(path(name)).f_files)
        call(f"statfs longest {name}", lambda: os.statvfs(path(name)).f_namemax)
        call(f"statfs flags {name}", lambda: os.statvfs(path(name)).f_flag)


def access(name, mode):
    return checked(libc.faccessat(-100, path(name).encode(), mode, 0))


def open_all():
    """Ways to open a file."""
    flags = {
        "RDONLY": os.O_RDONLY, "WRONLY": os.O_WRONLY, "RDWR": os.O_RDWR, "PATH": os.O_PATH,
        "DIRECTORY": os.O_DIRECTORY, "NOFOLLOW": os.O_NOFOLLOW, "DIRECT": os.O_DIRECT, "NOATIME": os.O_NOATIME,
        "TRUNC": os.O_TRUNC, "RDWR|TRUNC": os.O_RDWR | os.O_TRUNC, "CREAT": os.O_CREAT,
        "CREAT|EXCL": os.O_CREAT | os.O_EXCL, "WRONLY|APPEND": os.O_WRONLY | os.O_APPEND,
        "TMPFILE": os.O_TMPFILE | os.O_RDWR, "PATH|NOFOLLOW": os.O_PATH | os.O_NOFOLLOW,
    }
    for name in ALL:
        for label, bits in flags.items():
            call(f"open {name} {label}", opened, name, bits, lambda descriptor: "opened")


def read_all():
    """Reading, seeking, mapping, locking."""
    for name in FILES + ["folder", "link", "fifo"]:
        for offset, size in [(0, 10), (0, 1 << 20), (4095, 2), (16384, 16384), (100000, 5), (1 << 40, 5)]:
            call(f"pread {name} {offset} {size}", opened, name, os.O_RDONLY,
                 lambda descriptor: os.pread(descriptor, size, offset))
        for whence, label in [(os.SEEK_SET, "set"), (os.SEEK_END, "end"), (3, "data"), (4, "hole"), (5, "none")]:
            for offset in (0, 1, 20000, 70000, 1 << 40, -1):
                call(f"lseek {name} {label} {offset}", opened, name, os.O_RDONLY, seek(offset, whence))
        for length, offset in [(1, 0), (4096, 0), (10, 4096)]:
            call(f"mmap {name} shared {length} {offset}", opened, name, os.O_RDONLY,
                 mapped(length, offset, mmap.MAP_SHARED, mmap.PROT_READ))
            call(f"mmap {name} private-write {length} {offset}", opened, name, os.O_RDONLY,
                 mapped(length, offset, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE))
        call(f"mmap {name} shared-write", opened, name, os.O_RDONLY,
             mapped(1, 0, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE))
        for kind in ("flock", "fcntl"):
            for label, operation in [("shared", fcntl.LOCK_SH), ("exclusive", fcntl.LOCK_EX), ("none", fcntl.LOCK_UN)]:
                call(f"lock {name} {kind} {label}", opened, name, os.O_RDONLY, lock(kind, operation))
        for label, use in [("fsync", os.fsync), ("fdatasync", os.fdatasync), ("isatty", os.isatty),
                           ("ftruncate", lambda it: os.ftruncate(it, 0)), ("write", lambda it: os.write(it, b"x")),
                           ("fallocate", lambda it: checked(libc.fallocate(it, 0, ctypes.c_long(0), ctypes.c_long(1)))),
                           ("sendfile", sent), ("splice", spliced), ("copy_file_range", copied_range),
                           ("fadvise", lambda it: os.posix_fadvise(it, 0, 0, os.POSIX_FADV_DONTNEED)),
                           ("fchmod", lambda it: os.fchmod(it, 0o777)), ("fchown", lambda it: os.fchown(it, 1, 1)),
                           ("futimens", lambda it: os.utime(it)), ("FIGETBSZ", ioctl(2, 4)), ("FIONREAD", ioctl(0x541b, 4)),
                           ("FS_IOC_GETFLAGS", ioctl(0x80086601, 8)), ("FS_IOC_SETFLAGS", ioctl(0x40086602, 8)),
                           ("FS_IOC_GETVERSION", ioctl(0x80087601, 8)), ("FIBMAP", ioctl(1, 4)), ("unknown", ioctl(0x5aff, 4)),
                           ("F_GETFL", lambda it: fcntl.fcntl(it, fcntl.F_GETFL) & 3),
                           ("F_SETLEASE", lambda it: fcntl.fcntl(it, fcntl.F_SETLEASE, fcntl.F_RDLCK)),
                           ("readahead", lambda it: checked(libc.readahead(it, ctypes.c_long(0), 100)))]:
            call(f"{label} {name}", opened, name, os.O_RDONLY, use)
    for name in ("text", "blocks"):
        call(f"read past a mapping {name}", opened, name, os.O_RDONLY, mapped_past_the_end)
    for name in FILES + ["folder", "none"]:
        call(f"execve {name}", executed, name)


def list_all():
    """Directories."""
    for name in DIRECTORIES + ["text", "none", "link-folder"]:
        call(f"list {name}", lambda: sorted(listing(name)))
        call(f"list in order {name}", lambda: [entry[0] for entry in listing(name)][:50])
        call(f"positions {name}", opened, name, os.O_RDONLY, directory_positions)
        for offset in (0, 1, 2, 1 << 20, 1 << 62, -1):
            call(f"seek directory {name} {offset}", opened, name, os.O_RDONLY, seek(offset, os.SEEK_SET))
        call(f"read directory {name}", opened, name, os.O_RDONLY, lambda it: os.read(it, 10))
        call(f"openat {name}", opened, name, os.O_RDONLY,
             lambda it: os.close(os.open("a", os.O_RDONLY, dir_fd=it)))
        call(f"openat .. {name}", opened, name, os.O_RDONLY, lambda it: os.stat("..", dir_fd=it).st_nlink)


def extended_attributes():
    """Extended attributes."""
    names = ["user.small", "user.empty", "user.large", "user.none", "trusted.t", "security.s", "security.capability",
             "system.posix_acl_access", "system.none", "nonsense", ""]
    for name in FILES + ["folder", "link", "fifo", "none"]:
        for follow in (True, False):
            call(f"listxattr {name} {follow}", lambda: sorted(os.listxattr(path(name), follow_symlinks=follow)))
        for attribute in names:
            call(f"getxattr {name} {attribute}", lambda: os.getxattr(path(name), attribute))
        buffer = ctypes.create_string_buffer(3)
        call(f"getxattr {name} too small", lambda: checked(libc.getxattr(path(name).encode(), b"user.large", buffer, 3)))
        call(f"getxattr {name} size", lambda: checked(libc.getxattr(path(name).encode(), b"user.large", None, 0)))
        call(f"setxattr {name}", lambda: os.setxattr(path(name), "user.new", b"x"))
        call(f"removexattr {name}", lambda: os.removexattr(path(name), "user.small"))


def change():
    """Every call that would change a file system."""
    for name in ["text", "private", "folder", "link", "fifo", "none", "closed/new"]:
        at = path(name)
        for label, function, arguments in [
            ("chmod", os.chmod, (at, 0o777)), ("lchown", os.lchown, (at, 1, 1)), ("utime", os.utime, (at,)),
            ("truncate", os.truncate, (at, 0)), ("unlink", os.unlink, (at,)), ("rmdir", os.rmdir, (at,)),
            ("mkdir", os.mkdir, (at,)), ("mkfifo", os.mkfifo, (at,)), ("symlink", os.symlink, ("x", at)),
            ("link", os.link, (at, path("new"))), ("rename", os.rename, (at, path("new"))),
            ("rename to itself", os.rename, (at, at)), ("link over", os.link, (path("text"), at)),
        ]:
            call(f"{label} {name}", function, *arguments)


look_up()
open_all()
read_all()
list_all()
extended_attributes()
change()
