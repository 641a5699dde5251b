"""The daemons of the mounts: their resources during the load, and what remains when they are idle.

A mount is observed from outside (/proc, the kernel's list of FUSE connections) and through `archfs stats` and
`archfs list`.
"""

import collections
import json
import os
import signal
import subprocess
import time

from soaklib import processes
from soaklib.content import Wrong
from soaklib.worker import View

THREADS = 32
OPTIONS = ["--cache", "16M", "--cache-idle", "2s", "--threads", THREADS]
# Readahead threads (docs/CACHE.md), those that read in the background, and the limit for all threads.
AHEAD = min(max(os.cpu_count(), 8), 64)
BACKGROUND = 20
THREADS_LIMIT = THREADS + AHEAD + BACKGROUND + 8
# Limit of a daemon's resident memory, in MB: the cache, the same again for decoding, spare buffers, the
# program. For each thread: its answer of up to 1 MiB, the same for a read of the archive, and its decoders.
# An idle daemon keeps only the threads that answer requests.
MEMORY_LIMIT = 64 + 3 * (THREADS + AHEAD)
MEMORY_IDLE = 24 + 3 * THREADS
# How much more memory the last third may use than the first, relative and in MB.
MORE_RELATIVE, MORE = 0.10, 8
# How long resources may stay in use after the load, in seconds.
SETTLE = 60
# How long a forced clean-up may take, in seconds.
CLEAR = 15

GAUGES = ["metadata_cache", "data_cache"]


class Mount:
    def __init__(self, stage, dataset):
        self.stage, self.dataset = stage, dataset
        self.mount_point = stage.work / f"mount-{dataset.name}"
        self.log = stage.work / f"{dataset.name}.log"
        self.account = stage.work / f"{dataset.name}.json"
        self.view = View(dataset, self.mount_point)
        self.memory, self.threads, self.open_files, self.waiting = [], [], [], []
        self.last, self.holders, self.was_mounted = {}, 0, False
        self.pid = self.began = None

    def command(self, what, *options, after=()):
        return [self.stage.archfs, what, *options, *self.dataset.archives, self.mount_point, *after]

    def command_of(self, *words):
        return [self.stage.archfs, *words]

    def start(self):
        self.was_mounted = True
        self.call(*self.command("mount", *OPTIONS, "--log-file", self.log, "--stats-json", self.account))
        listed = self.listed()
        self.pid, self.first_holders = listed["daemon"], listed["holders"]
        self.began = processes.start_time(self.pid)
        self.connection = f"/sys/fs/fuse/connections/{processes.device_of(self.mount_point)}/waiting"
        self.first = {"descriptors": processes.descriptors(self.pid),
                      "threads": processes.status_number(self.pid, "Threads"),
                      "memory": self.resident()}

    def call(self, *words):
        """The standard output of an archfs command. Raises if it fails."""
        done = subprocess.run([str(word) for word in words], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, env=self.stage.environment, timeout=SETTLE)
        if done.returncode:
            raise Wrong(f"{' '.join(map(str, words))}: status {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def listed(self):
        return self.take_list(self.call(*self.command_of("list", "--json")))

    def resident(self):
        """Resident memory in MB."""
        memory = processes.status_number(self.pid, "VmRSS")
        if memory is None or processes.start_time(self.pid) != self.began:
            raise Wrong(f"the daemon of {self.mount_point} has ended: {processes.text_of(self.log)[-500:]}")
        return memory / 1000

    def in_flight(self):
        """Requests the kernel is waiting for; 0 if it has no list of connections."""
        text = processes.text_of(self.connection)
        return int(text) if text else None

    def sample(self, at):
        """Samples the kernel's view of the daemon, which costs almost nothing."""
        self.memory.append((at, self.resident()))
        self.threads.append(processes.status_number(self.pid, "Threads") or 0)
        self.open_files.append(len(processes.descriptors(self.pid)))
        self.waiting.append(self.in_flight())
        if self.memory[-1][1] > MEMORY_LIMIT:
            raise Wrong(f"the daemon of {self.mount_point} has {self.memory[-1][1]:.0f} MB, limit {MEMORY_LIMIT}")
        if self.threads[-1] > THREADS_LIMIT:
            raise Wrong(f"the daemon of {self.mount_point} has {self.threads[-1]} threads, limit {THREADS_LIMIT}")

    def take_numbers(self, text):
        """Checks the daemon's counters: none may decrease, and none may report damage."""
        told = json.loads(text)
        for key, value in flat(told):
            before = self.last.get(key)
            if isinstance(value, int) and before is not None and value < before and is_counter(key):
                raise Wrong(f"{key} of {self.mount_point} fell from {before} to {value}")
        self.last = dict(flat(told))
        if self.last["faults"]:
            raise Wrong(f"{self.last['faults']} faults at {self.mount_point}: {processes.text_of(self.log)[-1000:]}")

    def take_list(self, text):
        """Checks the mount's row of `archfs list`."""
        rows = [json.loads(line) for line in text.splitlines()]
        found = [row for row in rows if row["mountpoint"] == str(self.mount_point)]
        if len(found) != 1 or found[0]["state"] != "alive":
            raise Wrong(f"{self.mount_point} is listed as {found}")
        self.holders = max(self.holders, len(found[0]["holders"]))
        return found[0]

    def settle(self):
        """Waits until everything the load used is released. Raises with what is not."""
        deadline = time.monotonic() + SETTLE
        while left := self.unsettled():
            if time.monotonic() > deadline:
                raise Wrong(f"{self.mount_point}, {SETTLE} s after the last reader: {'; '.join(left)}\n"
                            + processes.stacks(self.pid))
            time.sleep(0.25)

    def unsettled(self):
        self.take_numbers(self.call(*self.command_of("stats", "--json", self.mount_point)))
        left = [f"{gauge} holds {self.last[f'{gauge}.held_bytes']} bytes" for gauge in GAUGES
                if self.last[f"{gauge}.held_bytes"]]
        if self.in_flight():
            left.append(f"{self.in_flight()} requests in flight")
        if (holders := self.listed()["holders"]) != self.first_holders:
            left.append(f"held by {holders}, at first by {self.first_holders}")
        leaked = collections.Counter(processes.descriptors(self.pid))
        leaked.subtract(self.first["descriptors"])
        if more := list(leaked.elements()):
            left.append(f"open is more than at first: {more}")
        if (threads := processes.status_number(self.pid, "Threads")) > self.first["threads"]:
            left.append(f"{threads} threads, at first {self.first['threads']}")
        if (memory := self.resident()) > MEMORY_IDLE:
            left.append(f"{memory:.0f} MB resident, limit {MEMORY_IDLE}")
        return left

    def thirds(self, since):
        """(min, max) of the resident memory in the first and in the last third after the warm-up."""
        behind = [memory for at, memory in self.memory if at >= since]
        third = max(1, len(behind) // 3)
        return tuple((min(part), max(part)) for part in [behind[:third], behind[-third:]])

    def is_flat(self, since):
        (_, first), (_, last) = self.thirds(since)
        if last > first * (1 + MORE_RELATIVE) + MORE:
            raise Wrong(f"the daemon of {self.mount_point} grows: {first:.0f} MB at most in the first third, "
                        f"{last:.0f} in the last")

    def end(self):
        """Unmounts, and checks what remains."""
        self.call(self.stage.archfs, "unmount", self.mount_point)
        left = self.left()
        if left:
            raise Wrong("; ".join(left))
        account = json.loads(self.account.read_text())
        if account["faults"] or account["requests"]["total"] < self.last["requests.total"]:
            raise Wrong(f"the account of {self.mount_point} says {account}")
        lines = self.log.read_text().splitlines()
        # A warning reports the files that several archives have.
        odd = [line for line in lines if "served" not in line and ": hides " not in line]
        if odd or not any("served" in line for line in lines):
            raise Wrong(f"the log of {self.mount_point} says {odd or lines}")

    def left(self):
        left = [f"mount left: {line}" for line in processes.mounts_below(self.mount_point)]
        if self.mount_point.exists():
            left.append(f"{self.mount_point} is left")
        if processes.start_time(self.pid) == self.began:
            left.append(f"the daemon of {self.mount_point} has not ended")
        return left

    def clear(self):
        """Removes the mount by force, even if the daemon does not respond."""
        deadline = time.monotonic() + CLEAR
        while time.monotonic() < deadline and self.began and processes.start_time(self.pid) == self.began:
            os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.05)
        # Killed guests may still hold the lock of the mount point for a moment.
        while time.monotonic() < deadline and self.was_mounted and (
                processes.mounts_below(self.mount_point) or records(self.mount_point)):
            subprocess.run([str(self.stage.archfs), "unmount", "--lazy", str(self.mount_point)], check=False,
                           capture_output=True, timeout=SETTLE, env=self.stage.environment)
            time.sleep(0.05)
        if processes.mounts_below(self.mount_point):
            subprocess.run(["umount", "--lazy", str(self.mount_point)], check=False)


def records(mount_point, user=os.getuid()):
    """archfs's records of mounts at or below a path, of one user. There may be records of other mounts."""
    found = []
    for parent in ["/tmp", "/dev/shm", "/var/tmp"]:
        directory = f"{parent}/archfs-{user}"
        names = os.listdir(directory) if os.path.isdir(directory) else []
        found += [f"{directory}/{name}" for name in names
                  if str(mount_point) in processes.text_of(f"{directory}/{name}")]
    return found


def flat(told, above=""):
    for key, value in told.items():
        if isinstance(value, dict):
            yield from flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def is_counter(key):
    # The kernel adds up per-CPU counters without synchronization, so a later peak may be lower.
    if key in ("started_seconds", "together.peers") or key.startswith("blocked"):
        return False
    return not key.endswith(("held_bytes", "_ns", "peak_memory_bytes"))
