"""Processes and mounts, from /proc."""

import os
import pathlib
import re


def text_of(path):
    """The text of the file; empty if the process has exited."""
    try:
        return pathlib.Path(path).read_text(errors="replace")
    except OSError:
        return ""


def status_number(pid, name):
    """A number of /proc/PID/status: VmRSS in kB, Threads."""
    found = re.search(rf"^{name}:\s+(\d+)", text_of(f"/proc/{pid}/status"), re.MULTILINE)
    return int(found[1]) if found else None


def start_time(pid):
    """The start time, which distinguishes a process from a later one with the same id."""
    fields = text_of(f"/proc/{pid}/stat").rpartition(") ")[2].split()
    return fields[19] if len(fields) > 19 and fields[0] not in "ZX" else None


def descriptors(pid):
    """The targets of all open descriptors, without numbers, sorted."""
    found = []
    directory = f"/proc/{pid}/fd"
    for name in os.listdir(directory):
        try:
            found.append(re.sub(r"\d+", "N", os.readlink(f"{directory}/{name}")))
        except OSError:
            pass
    return sorted(found)


def stacks(pid):
    """Kernel stacks of all threads of a process."""
    lines = [f"process {pid}: {text_of(f'/proc/{pid}/cmdline').replace(chr(0), ' ')[:200]}"]
    try:
        threads = sorted(os.listdir(f"/proc/{pid}/task"), key=int)
    except OSError:
        threads = []
    for thread in threads:
        directory = f"/proc/{pid}/task/{thread}"
        state = re.search(r"^State:\s+(.*)", text_of(f"{directory}/status"), re.MULTILINE)
        stack = " < ".join(text_of(f"{directory}/stack").split("\n"))
        lines.append(f"    {text_of(f'{directory}/comm').strip()} {state and state[1]} "
                     f"wchan {text_of(f'{directory}/wchan')} {stack}")
    return "\n".join(lines)


def mounts_below(directory):
    lines = text_of("/proc/self/mountinfo").splitlines()
    return [line for line in lines if (line.split()[4] + "/").startswith(f"{directory}/")]


def device_of(mount_point):
    """The minor number of the mount at a path, which names its FUSE connection."""
    line = next(line for line in mounts_below(mount_point) if line.split()[4] == str(mount_point))
    return int(line.split()[2].split(":")[1])


def marked(mark):
    """Processes with this variable in their environment: the soak's children and their descendants."""
    return marked_with(f"\0{mark}\0")


def marked_with(text):
    """Processes with this text in their environment, in which each variable ends with a NUL."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid() and start_time(name):
            try:
                environment = pathlib.Path(f"/proc/{name}/environ").read_bytes()
            except OSError:
                continue
            if text.encode() in b"\0" + environment:
                found.append(int(name))
    return found
