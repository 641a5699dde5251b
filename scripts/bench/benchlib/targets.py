"""The performance targets, as ratios within one round, and whether they were met. Also the gate of continuous
integration.

A ratio says how many times as fast archfs on an image, or the given system, is as another system, or how far a
measurement is below an absolute limit. It must be at least the target.
"""

import statistics
from typing import NamedTuple

from benchlib import packing, sections
from benchlib.systems import ARCHFS, DIRECT, DIRECT_TAR, EROFS, KERNEL, LOW_LEVEL, PLAIN

MOUNT_SECONDS, MEMORY_BYTES = 0.030, sections.MOUNT_CACHE + (64 << 20)


class Target(NamedTuple):
    dataset: str
    phase: str
    against: str
    needed: float
    # The phase of `against`, if it is a different one.
    other: str = ""
    system: str = ARCHFS


class Result(NamedTuple):
    """`ratios` of all rounds; empty if it was not measured."""
    dataset: str
    phase: str
    against: str
    needed: float
    ratios: list

    def ratio(self):
        return statistics.median(self.ratios)

    def met(self):
        return bool(self.ratios) and self.ratio() >= self.needed


def all_targets():
    small = ["S, zstd", "S, gzip"]
    for phase in [sections.FRESH, sections.PYTHON]:
        yield from (Target("J", phase, other, 2.2) for other in [KERNEL, LOW_LEVEL])
        yield Target("J", phase, PLAIN, 0.45)
    yield Target("J", sections.PYTHON_SECOND, PLAIN, 0.95)
    for dataset in small:
        yield Target(dataset, sections.FRESH, KERNEL, 6)
        yield Target(dataset, sections.FRESH, LOW_LEVEL, 4)
        yield Target(dataset, sections.FRESH, EROFS, 1.5)
        yield Target(dataset, sections.WALK, KERNEL, 1)
    for dataset in ["J", *small]:
        yield Target(dataset, sections.SECOND, PLAIN, 0.95)
        yield from (Target(dataset, sections.ONE, other, 1.5) for other in [KERNEL, LOW_LEVEL])
        yield Target(dataset, sections.SIXTY_FOUR, ARCHFS, 1, sections.FRESH)
    direct = {sections.ONE: 0.85, sections.FRESH: 0.9, sections.SIXTEEN: 0.85, sections.PYTHON: 0.9}
    for phase, needed in direct.items():
        yield from (Target("J", phase, PLAIN, needed, system=system) for system in (DIRECT, DIRECT_TAR))
    for phase in [sections.ONE, sections.FRESH, sections.SIXTEEN]:
        yield Target("S, zstd", phase, PLAIN, 0.8, system=DIRECT_TAR)
    yield from (Target("big file", sections.IN_ORDER, other, 1.5) for other in [KERNEL, LOW_LEVEL])
    yield Target("big file", sections.COLD, LOW_LEVEL, 1.5)
    yield Target("big file", sections.CACHED, LOW_LEVEL, 5)


def results(table):
    """One result per target and per version of its reference system. Sections that did not run have none."""
    found = []
    for target in all_targets():
        for name in versions(table, target.dataset, target.against):
            other = seconds(table, target.dataset, name, target.other or target.phase)
            own = seconds(table, target.dataset, target.system, target.phase)
            ratios = [other[number] / own[number] for number in own if number in other]
            if ratios:
                against = f"itself, {target.other}" if target.other else name
                of_system = "" if target.system == ARCHFS else f" ({target.system})"
                found.append(Result(target.dataset, target.phase + of_system, against, target.needed, ratios))
    listed = seconds(table, "mount", ARCHFS, sections.LISTED).values()
    memory = [row.bytes for row in table.of("mount", ARCHFS, sections.MEMORY)]
    limits = [(sections.LISTED, f"{1e3 * MOUNT_SECONDS:.0f} ms", [MOUNT_SECONDS / one for one in listed]),
              (sections.MEMORY, f"{MEMORY_BYTES >> 20} MiB", [MEMORY_BYTES / one for one in memory])]
    return found + [Result("mount", phase, f"limit of {limit}", 1, ratios)
                    for phase, limit, ratios in limits if ratios] + packed(table)


def packed(table):
    """Packing compared with mksquashfs in time and size, and reading the output."""
    found = []
    for letter in ["J", "S"]:
        for compressor in packing.COMPRESSORS:
            name = packing.name_of(letter, compressor)
            for phase, needed, figure in [(packing.PACKING, 1.5, seconds), (packing.SIZE, 1 / 1.02, sizes)]:
                own, other = (figure(table, name, packer, phase) for packer in packing.BY)
                ratios = [other[number] / own[number] for number in own if number in other]
                found.append(Result(name, phase, packing.MKSQUASHFS, needed, ratios))
        name = packing.read_name(letter)
        for system in [KERNEL, ARCHFS, packing.LIMITED]:
            own, other = (seconds(table, name, f"{system}, {by}", sections.FRESH)
                          for by in packing.BY.values())
            ratios = [other[number] / own[number] for number in own if number in other]
            found.append(Result(name, f"{sections.FRESH}, {system}", "that of mksquashfs", 1.3, ratios))
    return [one for one in found if one.ratios]


def sizes(table, dataset, system, phase):
    return {row.round: row.bytes for row in table.of(dataset, system, phase)}


def versions(table, dataset, name):
    return [one for one in table.systems(dataset) if one == name or
            name == LOW_LEVEL and one.startswith(f"{LOW_LEVEL} ")]


def seconds(table, dataset, system, phase):
    return {row.round: row.seconds for row in table.of(dataset, system, phase)}


def gate(table):
    """For each first epoch that archfs must not lose: the comparison, and the ratio of the medians."""
    compared = []
    for dataset in table.datasets():
        if dataset != "J" and dataset not in ["S, zstd", "S, gzip"]:
            continue
        own = seconds(table, dataset, ARCHFS, sections.FRESH).values()
        for name in [KERNEL, *versions(table, dataset, LOW_LEVEL)]:
            other = seconds(table, dataset, name, sections.FRESH).values()
            if own and other:
                compared.append((dataset, name, statistics.median(other) / statistics.median(own)))
    return compared
