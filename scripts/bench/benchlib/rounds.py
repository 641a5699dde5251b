"""The table of all measurements, and the interleaved rounds that fill it.

A round goes through the groups of phases that need a fresh mount each, and in each group through all systems.
So figures that are compared were measured within seconds or minutes of each other. The order of the systems
rotates from round to round.
"""

import sys
from typing import NamedTuple

from benchlib import reader


class Row(NamedTuple):
    """One measurement. `bytes` and `files` are what was read; for memory and sizes, what was found."""
    dataset: str
    system: str
    phase: str
    round: int
    seconds: float
    bytes: int
    files: int


class Table:
    """All rows, and notes about the datasets."""

    def __init__(self):
        self.rows, self.notes = [], {}

    def add(self, *values):
        self.rows.append(Row(*values))

    def note(self, dataset, text):
        self.notes.setdefault(dataset, []).append(text)

    def datasets(self):
        return list(dict.fromkeys(row.dataset for row in self.rows))

    def of(self, dataset, system=None, phase=None):
        return [row for row in self.rows if row.dataset == dataset and
                system in (None, row.system) and phase in (None, row.phase)]

    def systems(self, dataset):
        return list(dict.fromkeys(row.system for row in self.of(dataset)))

    def phases(self, dataset):
        return list(dict.fromkeys(row.phase for row in self.of(dataset)))


class Visit(NamedTuple):
    """A system's fresh mount of a dataset in one round, `root`, and the program that reads it."""
    epoch: str
    dataset: object
    system: object
    root: object
    round: int
    # What the system's `begin` yielded.
    began: object = None

    def measure(self, *words):
        """The figures of the reading program with these arguments."""
        return reader.measure(*self.run(), self.epoch, *words)

    def measure_python(self, *words):
        return reader.measure(*self.run(), sys.executable, reader.PYTHON_EPOCH, *words)

    def run(self):
        """The command that starts programs which read from this system."""
        return self.system.run(self.began, self.root)

    def seed(self, order):
        """The seed of the file order: the same for all systems, different in each round and phase."""
        return 10 * self.round + order


class Group(NamedTuple):
    """Phases that run one after another on one fresh mount: `measure(visit)` yields them with figures."""
    phases: tuple
    measure: object
    # The names of systems that are left out because they are slow.
    without: tuple = ()


def interleaved(bench, dataset, began, groups):
    """`began` maps each system to what its `begin` yielded."""
    for number in range(bench.rounds):
        for group in groups:
            wanted = [phase for phase in group.phases if bench.wants(phase)]
            systems = [system for system in began if system.name not in group.without]
            if wanted:
                one_group(bench, dataset, began, group, wanted, number, turned(systems, number))


def one_group(bench, dataset, began, group, wanted, number, systems):
    print(f"{dataset.name}, round {number + 1}: {', '.join(wanted)}", file=sys.stderr, flush=True)
    read = {}
    for system in systems:
        with system.shown(began[system], bench.mount_point) as root:
            visit = Visit(bench.epoch, dataset, system, root, number, began[system])
            for phase, figures in group.measure(visit):
                if phase not in wanted:
                    continue
                bench.table.add(dataset.name, system.name, phase, number, figures["seconds"],
                                figures["bytes"], figures["files"])
                found = figures["files"], figures["bytes"], figures["checksum"]
                read.setdefault(phase, {}).setdefault(found, []).append(system.name)
    for phase, found in read.items():
        if len(found) != 1:
            sys.exit(f"bench: {dataset.name}, {phase}: not all read the same: {found}")


def turned(things, by):
    by %= max(1, len(things))
    return things[by:] + things[:by]
