"""The machine, and the versions of all systems."""

import gzip
import os
import pathlib
import platform
import time

from benchlib.programs import ROOT, output, version


def facts(systems, work):
    """Facts to report with every figure, as names and texts."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    found = {
        "date": time.strftime("%Y-%m-%d"),
        "processors": f"{os.cpu_count()} ({processor()})",
        "memory": f"{memory / 2**30:.0f} GiB",
        "work directory": output("stat", "-f", "-c", "%T", work).strip(),
        "kernel": os.uname().release,
        "its squashfs": kernel_squashfs(),
        "archfs": commit(),
        "mksquashfs": version("mksquashfs", "-version"),
        "mkfs.erofs": version("mkfs.erofs", "--version"),
        "Python": platform.python_version(),
    }
    return found | {system.name: system.version for system in systems
                    if system.name.startswith("ratarmount")}


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def kernel_squashfs():
    """Whether it has a decompressor per CPU core, which differs between distributions."""
    try:
        with gzip.open("/proc/config.gz", "rt") as stream:
            lines = [line.strip() for line in stream]
    except OSError:
        path = pathlib.Path(f"/boot/config-{os.uname().release}")
        lines = path.read_text().splitlines() if path.exists() else []
    wanted = [line.removeprefix("CONFIG_SQUASHFS_") for line in lines if line.startswith("CONFIG_SQUASHFS")
              and ("DECOMP" in line or "FRAGMENT_CACHE" in line or "FILE_" in line)]
    return ", ".join(wanted) or "unknown configuration"


def commit():
    return output("git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=10").strip() or "unknown"


def load():
    """The number of processes that wanted to run, averaged over the last minute."""
    return os.getloadavg()[0]
