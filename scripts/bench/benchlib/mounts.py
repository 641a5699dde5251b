"""Mounting and unmounting. Everything mounted here is unmounted, however its reader ends."""

import contextlib
import os
import pathlib
import subprocess
import sys
import time

from benchlib.programs import call


def is_mounted(mount_point):
    """Whether it is mounted, including stale mounts, which os.path.ismount does not report."""
    escaped = str(mount_point.resolve().parent / mount_point.name)
    for character in ["\\", " ", "\t", "\n"]:
        escaped = escaped.replace(character, f"\\{ord(character):03o}")
    # Names of mount points are bytes, which are not always valid text.
    lines = pathlib.Path("/proc/self/mountinfo").read_text(errors="surrogateescape").split("\n")
    return any(line.split(" ")[4] == escaped for line in lines if line)


@contextlib.contextmanager
def mounted(mount_point, mount, unmount):
    """Yields `mount_point` between the commands `mount` and `unmount`; `unmount` always runs."""
    mount_point.mkdir(exist_ok=True)
    try:
        call(*mount, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if not is_mounted(mount_point):
            sys.exit(f"bench: nothing is mounted at {mount_point} after: {' '.join(map(str, mount))}")
        yield mount_point
    finally:
        if is_mounted(mount_point):
            take_down(mount_point, [str(word) for word in unmount])


@contextlib.contextmanager
def mounted_in_foreground(mount_point, mount, unmount):
    """The same for a command that serves until `unmount`."""
    mount_point.mkdir(exist_ok=True)
    server = subprocess.Popen([str(word) for word in mount], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not is_mounted(mount_point):
            if server.poll() is not None:
                sys.exit(f"bench: {mount[0]} ended with {server.returncode}")
            time.sleep(0.01)
        yield mount_point
    finally:
        if is_mounted(mount_point):
            take_down(mount_point, [str(word) for word in unmount])
        server.kill()
        server.wait()


def take_down(mount_point, unmount):
    """Retries, because readers that were just killed may still have files open."""
    deadline = time.monotonic() + 5
    while True:
        output = subprocess.run(unmount, check=False, capture_output=True, text=True)
        if not is_mounted(mount_point):
            return
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    print(f"bench: {mount_point} is detached while in use: {output.stderr.strip()}", file=sys.stderr)
    call(*(["fusermount3", "-u", "-z"] if os.geteuid() else ["umount", "--lazy"]), mount_point)
