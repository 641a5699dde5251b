#!/usr/bin/env python3
"""Runs in the virtual machine of scripts/bench/nfs: jobs that read the same files from an NFS server in several ways.

    node.py SETTINGS

SETTINGS is JSON. Prints a row of JSON after the word `row` for each job.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[nth]) for nth in (2, 3)]

from benchlib.nfs import loader
from benchlib.programs import call
from vmlib import nfs_server

EXPORT = pathlib.Path("/srv/export")
NFS = pathlib.Path("/mnt/nfs")
LOCAL = pathlib.Path("/dev/shm/job")
PROGRAMS = pathlib.Path("/run/programs")


class Way:
    """How a job gets the files: what begins it, where the files are then, and what ends it."""

    def __init__(self, name, begin=(), root=LOCAL, end=()):
        self.name, self.begin, self.root, self.end = name, begin, root, end


def ways(tar, image):
    archfs, squashfuse = PROGRAMS / "archfs", PROGRAMS / "squashfuse_ll"

    def mounted(archive, *options):
        return {"begin": [archfs, "mount", "--keep", "--quiet", *options, NFS / archive, LOCAL],
                "end": [archfs, "unmount", LOCAL]}
    return [
        Way("files on NFS", root=NFS / "files"),
        Way("tar in /dev/shm", ["tar", "-xf", NFS / tar, "-C", LOCAL]),
        Way("squashfuse_ll", [squashfuse, NFS / image, LOCAL], end=["umount", LOCAL]),
        Way("archfs", **mounted(image)),
        Way("archfs, tar", **mounted(tar)),
        Way("archfs --readahead off", **mounted(image, "--readahead=off")),
        Way("archfs --readahead off, tar", **mounted(tar, "--readahead=off")),
        Way("archfs --readahead all", **mounted(image, "--readahead=all")),
        Way("archfs --readahead all, tar", **mounted(tar, "--readahead=all")),
        Way("archfs --stage", **mounted(image, "--stage=/dev/shm")),
        Way("archfs --stage, tar", **mounted(tar, "--stage=/dev/shm")),
    ]


def job(way, workers, seed, settings):
    """Two epochs on a fresh mount of the file system. Times are divided by the scale of `settings`."""
    scale = settings["scale"]
    nfs_server.mount(NFS, scale, settings["read_ahead_kb"])
    LOCAL.mkdir()
    try:
        counters = [nfs_server.requests()]
        start = time.monotonic()
        if way.begin:
            call(*way.begin)
        files = loader.listed(way.root)
        first, end, size, checksum = loader.epoch(way.root, files, workers, seed)
        counters.append(nfs_server.requests())
        begin_second = time.monotonic()
        _, end_second, *again = loader.epoch(way.root, files, workers, seed + 1000)
        counters.append(nfs_server.requests())
        if again != [size, checksum]:
            raise RuntimeError(f"{way.name}: the epochs read different bytes")
    finally:
        if way.end:
            subprocess.run([str(word) for word in way.end], check=False)
        shutil.rmtree(LOCAL)
        unmount_nfs()
    rows = [{name: after[name] - before[name] for name in after} for before, after in zip(counters, counters[1:])]
    return {"way": way.name, "files": len(files), "bytes": size, "checksum": checksum,
            "first batch": (first - start) / scale, "epoch 1": (end - start) / scale,
            "epoch 2": (end_second - begin_second) / scale, "requests 1": rows[0], "requests 2": rows[1]}


def unmount_nfs():
    """Waits for daemons that close their archives only after they are unmounted."""
    for _ in range(100):
        if subprocess.run(["umount", str(NFS)], check=False, stderr=subprocess.DEVNULL).returncode == 0:
            return
        time.sleep(0.1)
    raise RuntimeError(f"{NFS} stays in use")


def keep_in_memory(programs):
    """Puts copies of programs, their libraries and some files of /etc over them. To open a file of the host takes some of
    the host's time, in which the clock of this machine runs at no known speed.
    """
    paths = [shutil.which(program) for program in programs]
    for program in list(paths):
        listed = subprocess.run(["ldd", program], check=False, capture_output=True, text=True).stdout
        paths += re.findall(r"(/\S+) \(0x", listed)
    paths += ["/etc/ld.so.cache", "/etc/nsswitch.conf", "/etc/passwd", "/etc/group", "/etc/fuse.conf"]
    for number, path in enumerate(sorted({os.path.realpath(path) for path in paths if os.path.exists(path)})):
        if not path.startswith(str(PROGRAMS)):
            copy = PROGRAMS / "kept" / str(number)
            copy.parent.mkdir(exist_ok=True)
            shutil.copy2(path, copy)
            call("mount", "--bind", copy, path)


def prepare(settings):
    """Copies programs and data into memory."""
    for directory in [EXPORT, NFS, PROGRAMS]:
        directory.mkdir(parents=True, exist_ok=True)
    call("mount", "-t", "tmpfs", "-o", "size=80%", "tmpfs", EXPORT)
    for source in settings["archives"]:
        shutil.copy2(source, EXPORT)
    tar, image = (pathlib.Path(name).name for name in settings["archives"])
    (EXPORT / "files").mkdir()
    call("tar", "-xf", EXPORT / tar, "-C", EXPORT / "files")
    call("mount", "-t", "tmpfs", "tmpfs", PROGRAMS)
    # archfs looks there at its start, and that must not take time of the host.
    for directory in ["/root", "/var/tmp"]:
        call("mount", "-t", "tmpfs", "tmpfs", directory)
    for program in settings["programs"]:
        shutil.copy(program, PROGRAMS)
    used = [PROGRAMS / pathlib.Path(program).name for program in settings["programs"]]
    keep_in_memory([*map(str, used), "tar", "ip", "cat", "mount", "umount"])
    nfs_server.start(EXPORT)
    # An index is only valid for the file as clients see it.
    nfs_server.mount(NFS, settings["scale"])
    call(PROGRAMS / "archfs", "index", "--quiet", "--index=/run/index", NFS / tar)
    call("umount", NFS)
    shutil.copy("/run/index", f"{EXPORT / tar}.archfs-index")
    return tar, image


def main(settings):
    scale = settings["scale"]
    every_way = [way for way in ways(*prepare(settings)) if way.name in settings["ways"] or not settings["ways"]]
    nfs_server.set_round_trip(0)
    # Loads all programs.
    for way in every_way:
        job(way, 1, 0, settings)
    for number in range(settings["rounds"]):
        for delay in settings["delays"]:
            nfs_server.set_round_trip(delay / 1000 * scale)
            for workers in settings["workers"]:
                for way in every_way:
                    row = job(way, workers, number + 1, settings)
                    row |= {"round": number, "delay": delay, "workers": workers}
                    print("row", json.dumps(row), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
