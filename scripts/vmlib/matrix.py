"""The checks of tests/kernels/node under several kernels, as one table."""

import os
import pathlib
import platform
import shlex
import shutil
import tempfile
import time

from vmlib import data, kernels, roots
from vmlib.machine import Architecture, Ended, Machine

TESTS = kernels.PROJECT / "tests"
# What the node runs besides archfs.
SCRIPTS = [TESTS / "kernels" / "node", TESTS / "direct" / "read-all", pathlib.Path(__file__).with_name("nfs_server.py")]

# How often to start a machine that ends before its first check: kernels sometimes panic while they start in a virtual
# machine of a virtual machine.
STARTS = 2


class Column:
    """What one kernel showed."""

    def __init__(self, title):
        self.title = title
        self.results, self.facts = {}, {}
        self.status = None

    def take(self, line):
        word, _, rest = line.partition("\t")
        name, _, text = rest.partition("\t")
        if word in ("ok", "FAILED"):
            self.results[name] = word
        elif word == "fact":
            self.facts[name] = text
        print(f"{word:8}{self.title}: {name}{f': {text}' if text else ''}" if rest else line, flush=True)

    def has_failed(self):
        return self.status != 0 or "FAILED" in self.results.values() or not self.results


def run(title, machine_name, program, processors, is_long):
    """Runs the checks under one kernel."""
    column = Column(f"{title}, {machine_name}")
    kernel = kernels.get(title, machine_name)
    foreign = {}
    if machine_name != platform.machine():
        root = roots.directory(machine_name)
        foreign = {"root": root, "busybox": root / "bin/busybox"}
    with tempfile.TemporaryDirectory(dir=kernels.KEPT) as directory:
        # All that the machine needs is shared with it, because it may have other files.
        shared = pathlib.Path(directory)
        shutil.copytree(data.directory(is_long), shared, copy_function=os.link, dirs_exist_ok=True)
        # A user of the machine reads it.
        shared.chmod(0o755)
        for file, name in [(data.old_helper(machine_name), "fusermount"), (program, "archfs")]:
            shutil.copy(file, shared / name)
        for script in SCRIPTS:
            shutil.copy(script, shared)
        machine = Machine(kernel, Architecture(machine_name), processors=processors, share=shared, **foreign)
        words = [shared / "node", shared / "archfs", shared, *(["--long"] if is_long else [])]
        start = time.monotonic()
        for nth in range(STARTS):
            try:
                column.status = machine.run(shlex.join(str(word) for word in words), column.take)
                break
            except Ended as ended:
                is_last = column.results or nth + 1 == STARTS
                print(f"{'FAILED' if is_last else 'again':8}{column.title}: {ended}", flush=True)
                if is_last:
                    break
    column.facts["minutes"] = f"{(time.monotonic() - start) / 60:.0f}"
    return column


def table(columns):
    """The results, a row for each check."""
    rows = [["check", *(column.title for column in columns)], ["---"] * (len(columns) + 1)]
    fact = lambda name: [name, *(column.facts.get(name, "?") for column in columns)]
    names = dict.fromkeys(name for column in columns for name in column.results)
    rows.append(fact("kernel"))
    rows += [[name, *(column.results.get(name, "not run") for column in columns)] for name in names]
    rows += [fact(name) for name in dict.fromkeys(name for column in columns for name in column.facts) if name != "kernel"]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
