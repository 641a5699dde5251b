"""What a worker does. A turn of a role is short, unless the CPU cores are busy.

Each turn checks every byte and attribute it gets, and reports to the board after each call, so that hangs are
noticed. Anything unexpected, including an error of a system call, ends the worker and the soak.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import socket
import stat
import time

from soaklib.content import BLOCK, UNIT, Wrong

CHUNK = 1 << 20
# The maximum that one turn reads of a large file, in bytes.
TURN_BYTES = 24 << 20


@contextlib.contextmanager
def opened(worker, entry, flags=os.O_RDONLY):
    worker.at = entry.path
    descriptor = os.open(worker.path_of(entry), flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def forget(descriptor):
    """Drops a file from the kernel's page cache, so that the next read reaches the daemon."""
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def forget_at_times(worker, descriptor):
    if worker.random.random() < 0.6:
        forget(descriptor)


def whole(worker):
    """Whole files in shuffled order, with a fixed read size per file."""
    for entry in worker.files(20):
        with opened(worker, entry) as descriptor:
            forget_at_times(worker, descriptor)
            size = worker.random.choice([4096, 65536, 131072, 300_001, CHUNK])
            offset = worker.start_of_turn(entry.file)
            end = min(offset + TURN_BYTES, entry.file.size)
            os.lseek(descriptor, offset, os.SEEK_SET)
            while offset <= end and not worker.is_over():
                got = os.read(descriptor, size)
                worker.compare(entry.file, offset, size, got)
                if not got:
                    break
                offset += len(got)


def random_offsets(worker):
    """Reads at random offsets, also across and past the end of the file."""
    for entry in worker.files(5, large=0.7):
        with opened(worker, entry) as descriptor:
            forget_at_times(worker, descriptor)
            if worker.random.random() < 0.5:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            for _ in range(30):
                offset = worker.random.randrange(entry.file.size + 5000)
                size = worker.random.choice([1, 100, 4096, 5000, BLOCK, 200_000])
                worker.compare(entry.file, offset, size, os.pread(descriptor, size, offset))


def walk(worker):
    """Listings, attributes, links and missing names in a directory and everything below it."""
    waiting = [worker.random.choice(worker.directories)]
    seen = 0
    while waiting and seen < 3000 and not worker.is_over():
        directory = waiting.pop()
        names = set()
        with os.scandir(worker.path(directory)) as listing:
            for found in listing:
                path = f"{directory}/{found.name}".lstrip("/")
                entry = worker.entries.get(path)
                if entry is None or found.name in names:
                    raise Wrong(f"{path} is listed and should not be, or twice")
                names.add(found.name)
                if found.is_dir(follow_symlinks=False) != stat.S_ISDIR(entry.kind):
                    raise Wrong(f"{path} is listed with another type")
                if stat.S_ISDIR(entry.kind):
                    waiting.append(path)
                look_at(worker, entry)
                seen += 1
        if names != worker.children[directory]:
            raise Wrong(f"{directory} lacks {sorted(worker.children[directory] - names)[:3]}")
        not_there(worker, directory)
    os.statvfs(worker.path(""))


def look_at(worker, entry):
    """Checks the attributes of an entry."""
    worker.at, path = entry.path, worker.path_of(entry)
    found = os.lstat(path)
    worker.beat()
    expected = (entry.kind | entry.mode, entry.mtime)
    if (found.st_mode, int(found.st_mtime)) != expected or entry.file and (
            found.st_size, found.st_nlink) != (entry.file.size, entry.links):
        raise Wrong(f"{entry.path}: {found} instead of {entry}")
    if stat.S_ISLNK(entry.kind):
        if os.readlink(path) != entry.target:
            raise Wrong(f"{entry.path}: leads to {os.readlink(path)[:100]}")
    elif worker.random.random() < 0.3:
        if attributes_of(path) != entry.attributes:
            raise Wrong(f"{entry.path}: {attributes_of(path)} instead of {entry.attributes}")


def attributes_of(path):
    try:
        return tuple(sorted((name, os.getxattr(path, name)) for name in os.listxattr(path)))
    except OSError as error:
        # This is the error of an archive without any attributes.
        if error.errno != errno.EOPNOTSUPP:
            raise
        return ()


def not_there(worker, directory):
    """Checks that a name is missing, and that nothing can be written."""
    path = worker.path(f"{directory}/not there {worker.random.randrange(1000)}")
    expect(errno.ENOENT, os.lstat, path)
    expect(errno.EROFS, os.open, path, os.O_WRONLY | os.O_CREAT)
    worker.beat()


def expect(number, call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        if error.errno == number:
            return
        raise
    raise Wrong(f"{call.__name__}{arguments} should fail with {errno.errorcode[number]}")


def mapped(worker):
    """Random pages of mapped files, and then a sequential range."""
    for entry in worker.files(4, large=0.6):
        file = entry.file
        if not file.size:
            continue
        with opened(worker, entry) as descriptor:
            forget_at_times(worker, descriptor)
            view = mmap.mmap(descriptor, file.size, mmap.MAP_SHARED, mmap.PROT_READ)
        # The mapping stays valid after its descriptor is closed.
        with view:
            view.madvise(worker.random.choice([mmap.MADV_NORMAL, mmap.MADV_RANDOM, mmap.MADV_SEQUENTIAL]))
            for _ in range(40):
                offset = worker.random.randrange(file.size)
                size = worker.random.choice([1, 4096, 70_000])
                worker.compare(file, offset, size, view[offset:offset + size])
            offset = worker.start_of_turn(file)
            for offset in range(offset, min(offset + 4 * CHUNK, file.size), CHUNK):
                worker.compare(file, offset, CHUNK, view[offset:offset + CHUNK])
            if worker.random.random() < 0.3:
                view.madvise(mmap.MADV_DONTNEED)
                worker.compare(file, 0, UNIT, view[:UNIT])


def seek(worker):
    """SEEK_DATA and SEEK_HOLE at random offsets, each followed by a read there."""
    for entry in worker.files(6, large=0.5, sparse=0.5):
        file = entry.file
        with opened(worker, entry) as descriptor:
            for _ in range(20):
                offset = worker.random.randrange(file.size + 1)
                if offset == file.size:
                    expect(errno.ENXIO, os.lseek, descriptor, offset, os.SEEK_DATA)
                    expect(errno.ENXIO, os.lseek, descriptor, offset, os.SEEK_HOLE)
                    continue
                end = file.end_of_run(offset)
                is_hole = file.is_hole(offset // BLOCK)
                data, hole = (end, offset) if is_hole else (offset, end)
                found = (os.lseek(descriptor, offset, os.SEEK_DATA),
                         os.lseek(descriptor, offset, os.SEEK_HOLE))
                if found != (data, hole):
                    raise Wrong(f"{file.path}: data and hole behind {offset} are at {found}, "
                                f"not at {(data, hole)}")
                at = worker.random.choice([data, hole])
                os.lseek(descriptor, at, os.SEEK_SET)
                worker.compare(file, at, 9000, os.read(descriptor, 9000))


def many(worker):
    """Many open files, read in turns."""
    entries = worker.files(200)
    with contextlib.ExitStack() as stack:
        files = [(entry.file, stack.enter_context(opened(worker, entry))) for entry in entries]
        for _ in range(3):
            worker.random.shuffle(files)
            for file, descriptor in files:
                offset = worker.random.randrange(file.size + 1)
                worker.compare(file, offset, 3000, os.pread(descriptor, 3000, offset))


def copy(worker):
    """Copies made by the kernel: to a socket, through a pipe, to a file in memory."""
    for entry in worker.files(3, large=0.5):
        with opened(worker, entry) as descriptor:
            forget_at_times(worker, descriptor)
            worker.random.choice([to_socket, through_pipe, to_memory, to_file])(worker, entry.file, descriptor)


def pieces(worker, file, size):
    """The offsets and lengths to copy in one turn."""
    start = worker.start_of_turn(file)
    return range(start, min(start + 2 * CHUNK, file.size), size)


def some(file, count):
    """These calls may copy less than requested, but before the end of a file never nothing."""
    if count == 0:
        raise Wrong(f"{file.path}: a copy ends before the end")
    return count


def to_socket(worker, file, descriptor):
    here, there = socket.socketpair()
    with here, there:
        for offset in pieces(worker, file, 50_000):
            count = some(file, os.sendfile(here.fileno(), descriptor, offset, 50_000))
            worker.compare(file, offset, count, there.recv(count, socket.MSG_WAITALL))


def through_pipe(worker, file, descriptor):
    source, target = os.pipe()
    with open(source, "rb", buffering=0) as source, open(target, "wb", buffering=0) as target:
        # An ordinary user's pipe buffers are limited.
        with contextlib.suppress(OSError):
            fcntl.fcntl(target, fcntl.F_SETPIPE_SZ, 1 << 16)
        for offset in pieces(worker, file, 32_768):
            count = some(file, os.splice(descriptor, target.fileno(), 32_768, offset_src=offset))
            got = b""
            while len(got) < count:
                got += source.read(count - len(got))
            worker.compare(file, offset, count, got)


def to_memory(worker, file, descriptor):
    target = os.memfd_create("soak")
    try:
        copy_by(worker, file, descriptor, target, os.sendfile)
    finally:
        os.close(target)


def to_file(worker, file, descriptor):
    """Kernels differ in whether they can copy a range between file systems."""
    with open(worker.scratch, "w+b", buffering=0) as target:
        try:
            copy_by(worker, file, descriptor, target.fileno(), copy_range)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL):
                raise
            copy_by(worker, file, descriptor, target.fileno(), os.sendfile)


def copy_range(target, source, offset, count):
    return os.copy_file_range(source, target, count, offset_src=offset)


def copy_by(worker, file, descriptor, target, call):
    os.lseek(target, 0, os.SEEK_SET)
    at = 0
    for offset in pieces(worker, file, 300_000):
        count = some(file, call(target, descriptor, offset, 300_000))
        worker.compare(file, offset, count, os.pread(target, count, at))
        at += count


def direct(worker):
    """O_DIRECT reads, which bypass the page cache, into aligned memory."""
    buffer = worker.aligned
    for entry in worker.files(4, large=0.6):
        file = entry.file
        with opened(worker, entry, os.O_RDONLY | os.O_DIRECT) as descriptor:
            for _ in range(12):
                offset = worker.random.randrange(file.size // UNIT + 1) * UNIT
                size = worker.random.choice([4096, 32768, BLOCK, len(buffer)])
                count = os.preadv(descriptor, [memoryview(buffer)[:size]], offset)
                worker.compare(file, offset, size, buffer[:count])


def drop(worker):
    """Drops the cached pages of many files while other workers read them."""
    for entry in worker.files(100, large=0.2):
        with opened(worker, entry) as descriptor:
            forget(descriptor)
            worker.compare(entry.file, 0, 100, os.pread(descriptor, 100, 0))


def kill(worker):
    """Kills another worker after a random delay."""
    others = [slot for slot in range(worker.board.slots) if slot != worker.number]
    # The delay is the point: it hits the worker in the middle of something.
    time.sleep(worker.random.random() * 0.03)
    worker.board.kill(worker.random.choice(others), worker.number)


# The relative frequency of each role.
ROLES = {
    whole: 10, random_offsets: 10, walk: 8, mapped: 10, seek: 6, many: 5, copy: 8, direct: 8, drop: 4, kill: 8,
}
NAMES = [role.__name__ for role in ROLES]
