"""Mounting and unmounting. Whatever is mounted here is unmounted, however its reader comes to an end."""

import contextlib
import os
import pathlib
import subprocess
import sys
import time

from benchlib.programs import call


def is_mounted(place):
    """Also when what serves it is dead, which os.path.ismount does not see."""
    escaped = str(place.resolve().parent / place.name)
    for character in ["\\", " ", "\t", "\n"]:
        escaped = escaped.replace(character, f"\\{ord(character):03o}")
    # Names of mounts are bytes, those of others not always text.
    lines = pathlib.Path("/proc/self/mountinfo").read_text(errors="surrogateescape").split("\n")
    return any(line.split(" ")[4] == escaped for line in lines if line)


@contextlib.contextmanager
def mounted(place, mount, unmount):
    """`place` from the command `mount` to the command `unmount`, which comes in any case."""
    place.mkdir(exist_ok=True)
    try:
        call(*mount, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if not is_mounted(place):
            sys.exit(f"bench: nothing is mounted at {place} after: {' '.join(map(str, mount))}")
        yield place
    finally:
        if is_mounted(place):
            take_down(place, [str(word) for word in unmount])


def take_down(place, unmount):
    """Readers that were just killed may need a moment to let go."""
    deadline = time.monotonic() + 5
    while True:
        output = subprocess.run(unmount, check=False, capture_output=True, text=True)
        if not is_mounted(place):
            return
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    print(f"bench: {place} is detached while in use: {output.stderr.strip()}", file=sys.stderr)
    call(*(["fusermount3", "-u", "-z"] if os.geteuid() else ["umount", "--lazy"]), place)
