"""examples/epoch and scripts/bench/epoch.py as readers; contents of the page cache; the memory of a daemon."""

import contextlib
import ctypes
import json
import mmap
import os
import pathlib
import signal
import subprocess
import sys

from benchlib.programs import ROOT, call

PYTHON_EPOCH = ROOT / "scripts" / "bench" / "epoch.py"


def measure(*command):
    """The figures that a reader prints. If this is interrupted, the reader's workers end too."""
    words = [str(word) for word in command]
    reader = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        output = reader.communicate()[0].split()
    except BaseException:
        os.killpg(reader.pid, signal.SIGKILL)
        reader.wait()
        raise
    if reader.returncode:
        raise subprocess.CalledProcessError(reader.returncode, words)
    return {"files": int(output[0]), "bytes": int(output[1]), "seconds": float(output[2]),
            "checksum": output[3]}


# The page cache.

def warm(*files):
    for file in files:
        with open(file, "rb") as stream:
            while stream.read(1 << 20):
                pass


def warm_archive(file):
    """Loads the file into the page cache as a job would from a disk: in large pieces.

    A packer's small writes leave single pages there, and reading those takes a fifth longer.
    """
    with open(file, "rb") as stream:
        os.fsync(stream)
    forget(file)
    warm(file)


def forget(*files):
    """Drops the pages of the files from the page cache."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def resident(file):
    """Bytes of a file that are in the page cache, by mincore(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
                          ctypes.c_long]
    descriptor = os.open(file, os.O_RDONLY)
    size = os.fstat(descriptor).st_size
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    address = ctypes.c_void_p(libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0))
    os.close(descriptor)
    try:
        if libc.mincore(address, ctypes.c_size_t(size), pages):
            raise OSError(ctypes.get_errno(), "mincore failed", str(file))
    finally:
        libc.munmap(address, ctypes.c_size_t(size))
    return mmap.PAGESIZE * sum(page & 1 for page in pages)


# Daemons.

def archfs_daemon(program, mount_point):
    rows = call(program, "list", "--json", capture_output=True, text=True).stdout.splitlines()
    for row in map(json.loads, rows):
        if row["mountpoint"] == str(mount_point.resolve()):
            return row["daemon"]
    return sys.exit(f"bench: archfs list has no {mount_point}")


def daemon(words, archive):
    """The process of one of these programs that has the archive among its arguments."""
    for directory in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found = (directory / "cmdline").read_bytes().split(b"\0")
            names = [os.path.basename(one) for one in found[:5]]
            if any(name in words for name in map(os.fsdecode, names)) and bytes(archive) in found:
                return int(directory.name)
    return sys.exit(f"bench: found no process of {', '.join(words)} for {archive}")


def memory(pid):
    """VmRSS and VmHWM, in bytes."""
    lines = [line.split() for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()]
    return {line[0].rstrip(":"): 1024 * int(line[1]) for line in lines
            if line and line[0] in ("VmRSS:", "VmHWM:")}


def anonymous_memory(*pids):
    """Anonymous memory in bytes, without the page cache; memory shared by several processes is divided among
    them.
    """
    lines = [line.split() for pid in pids
             for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    return 1024 * sum(int(line[1]) for line in lines if line[0] in ("Pss_Anon:", "Pss_Shmem:"))
