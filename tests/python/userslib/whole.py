"""A whole Python environment as one file, run from its mount; measures how long imports take."""

import contextlib
import os
import shutil
import statistics
import subprocess
import time

from userslib.report import same
from userslib.stage import USERS, View

MODULES = ["torch", "torchvision", "numpy", "pandas", "pyarrow", "h5py", "datasets"]
ROUNDS = 3


def environment(stage):
    directory = stage.python.parents[1]
    view, seconds = packed(stage, directory)
    with stage.report.check("an environment packed as one file gives what its directory gives"), \
            stage.mounted(view) as mount_point:
        for script, words in [("where.py", MODULES), ("first_steps.py", [])]:
            same(stage.user(script, *words), stage.call(mount_point / "bin" / "python", USERS / script, *words))
    size = view.archives[0].stat().st_size
    stage.report.note(f"the environment: {sum(len(names) for _, _, names in os.walk(directory))} files, "
                      f"{size >> 20} MiB packed in {seconds:.0f} s")
    if stage.times:
        tell_times(stage, directory, view)


def packed(stage, directory):
    """Packed with zstd:3, because an environment is repacked more often than a dataset."""
    target = stage.work / "environment.sqfs"
    begun = time.monotonic()
    stage.pack("--compressor", "zstd:3", directory, target)
    return View("sqfs", (target,)), time.monotonic() - begun


def tell_times(stage, directory, view):
    """Never fails: the times depend on the load of the machine."""
    if not shutil.which("mksquashfs") or not shutil.which("squashfuse_ll"):
        stage.report.note("mksquashfs or squashfuse_ll is missing, so no times are compared")
        return
    default = stage.work / "default.sqfs"
    stage.call("mksquashfs", directory, default, "-no-progress", "-quiet")
    systems = {
        "the directory": lambda: contextlib.nullcontext(directory),
        "archfs, of archfs pack": lambda: stage.mounted(view),
        "archfs, of mksquashfs": lambda: stage.mounted(View("default", (default,))),
        "squashfuse_ll, of mksquashfs": lambda: squashfuse(stage, default),
    }
    times = {name: [] for name in systems}
    for _ in range(ROUNDS):
        for name, system in systems.items():
            with system() as mount_point:
                begun = time.monotonic()
                stage.call(mount_point / "bin" / "python", "-c", "import " + ", ".join(MODULES))
                times[name].append(time.monotonic() - begun)
    first = statistics.median(times["the directory"])
    for name, each in times.items():
        middle = statistics.median(each)
        stage.report.note(f"imports of it: {name}: {middle:.2f} s, {middle / first:.2f} times the directory's "
                          f"(medians of {ROUNDS}, fresh mounts, images in the page cache)")


@contextlib.contextmanager
def squashfuse(stage, image):
    mount_point = stage.work / "squashfuse"
    mount_point.mkdir()
    try:
        stage.call("squashfuse_ll", image, mount_point)
        yield mount_point
    finally:
        unmount = ["umount"] if os.geteuid() == 0 else ["fusermount3", "-u"]
        subprocess.run([*unmount, str(mount_point)], check=False, capture_output=True)
        mount_point.rmdir()
