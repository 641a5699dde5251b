"""Control groups of version 1 or 2 that limit memory."""

import os
import pathlib
import time


class Group:
    """A memory control group."""

    def __init__(self, limit):
        root = pathlib.Path("/sys/fs/cgroup")
        self.is_first = (root / "memory").is_dir()
        self.path = (root / "memory" if self.is_first else root) / f"archfs-bench-{os.getpid()}"
        self.path.mkdir()
        if self.is_first:
            (self.path / "memory.limit_in_bytes").write_text(str(limit))
            swap = self.path / "memory.memsw.limit_in_bytes"
            if swap.exists():
                swap.write_text(str(limit))
        else:
            (self.path / "memory.max").write_text(str(limit))

    def words(self, *words):
        """A command line that runs `words` in the group."""
        return ["sh", "-c", f"echo $$ > {self.path}/cgroup.procs; exec \"$@\"", "sh", *map(str, words)]

    def killed(self):
        file = "memory.oom_control" if self.is_first else "memory.events"
        lines = (self.path / file).read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))

    def remove(self):
        for _ in range(200):
            try:
                return self.path.rmdir()
            except OSError:
                time.sleep(0.05)
