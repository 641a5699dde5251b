"""examples/slow: a file system whose requests take longer, for archives or directories that are far away."""

import contextlib
import subprocess
import sys
import time

from benchlib import mounts, programs

COUNTERS = ["reads", "bytes", "most in flight", "mean in flight"]


def build():
    """The program. programs.build() must have built the others."""
    programs.call("cargo", "build", "--quiet", "--release", "--locked", "--example", "slow", cwd=programs.ROOT)


@contextlib.contextmanager
def mounted(slow, source, mount_point, milliseconds, megabytes_per_second=None):
    """Mounts a file or a directory. Yields a dictionary of counters, which is filled when it is unmounted."""
    mount_point.mkdir(exist_ok=True)
    counters = {}
    rate = [] if megabytes_per_second is None else [str(megabytes_per_second)]
    words = [slow, source, mount_point, str(milliseconds), *rate]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        while not mounts.is_mounted(mount_point):
            if server.poll() is not None:
                sys.exit(f"bench: {slow} ended with {server.returncode}")
            time.sleep(0.01)
        yield counters
    finally:
        if mounts.is_mounted(mount_point):
            mounts.take_down(mount_point, ["umount", str(mount_point)])
        counters.update(zip(COUNTERS, map(float, server.communicate()[0].split())))
