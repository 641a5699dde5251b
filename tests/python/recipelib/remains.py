"""What a recipe has left behind: mounts of its archives, processes of its archfs, mount points."""

import os
import signal
import subprocess
import time

# A mount ends within two seconds of its last holder (docs/CLI.md).
PATIENCE = 5


def mounts(world):
    """The mounts of this world, each with its node. Never accesses a mount itself, because a stale one does not
    answer.
    """
    found = []
    for node in world.nodes:
        with open(node.proc / "mountinfo", encoding="utf-8", errors="surrogateescape") as table:
            for line in table:
                fields = line.split(" ")
                rest = fields[fields.index("-") + 1:]
                if rest[0] == "fuse.archfs" and (str(world.top) in rest[1] or fields[4] in world.mounted):
                    found.append((node, fields[4]))
    return found


def processes(world):
    """Processes of this world's own copy of archfs."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{name}/exe").startswith(f"{world.bin}/archfs"):
                found.append(int(name))
        except OSError:
            pass
    return found


def left(world):
    return (
        [f"mount at {mount_point} on {node.name}" for node, mount_point in mounts(world)]
        + [f"process {number}" for number in processes(world)]
        + [f"directory {mount_point} on {node.name}" for node in world.nodes
           for mount_point in sorted(world.mounted - world.there) if os.path.lexists(node.path(mount_point))]
        + [f"file {name}" for name in unfinished(world)])


def unfinished(world):
    """Temporary files of archfs. Those of other programs, such as torchrun, are ignored."""
    for directory in (world.work, world.temporary):
        for name in os.listdir(directory):
            if name.lstrip(".").startswith("archfs"):
                yield os.path.join(directory, name)


def wait(world):
    """What remains after enough time to clean up."""
    deadline = time.monotonic() + PATIENCE
    while (rest := left(world)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return rest


def clear(world):
    """Clears what a failed recipe has left, so that the next one starts clean."""
    for node, mount_point in mounts(world):
        unmount = [world.bin / "archfs", "unmount", "--lazy", mount_point]
        subprocess.run([*node.enter, *unmount], check=False, timeout=30)
    for number in processes(world):
        try:
            os.kill(number, signal.SIGKILL)
        except ProcessLookupError:
            pass
    for node in world.nodes:
        subprocess.run([*node.enter, world.bin / "archfs", "gc", "--quiet"], check=False, timeout=30)
