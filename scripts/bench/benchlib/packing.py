"""The sections about packing: archfs pack compared with mksquashfs, and the reading speed of their output.

Packing: the same directory, in the page cache, with the same compressor at mksquashfs's default level, to a
file on the disk of the work directory; small files in blocks of 128 KiB, mksquashfs's default. archfs pack
waits until its file is on disk, mksquashfs does not. Reading: the first epoch by 4 processes from the output
of both without options: in the kernel, in archfs, and in archfs with a cache of a tenth of the data, as for
datasets larger than memory.
"""

import os
import subprocess
import time

from benchlib import datasets, reader, sections, systems
from benchlib.rounds import Group, interleaved, turned

PACK, MKSQUASHFS = "archfs pack", "mksquashfs"
PACKING, PROCESSOR, SIZE = "packing", "packing, processor", "size of the image"
COMPRESSORS = ["zstd", "gzip"]
LIMITED = f"{systems.ARCHFS}, cache for a tenth"
BY = {PACK: "by archfs pack", MKSQUASHFS: "by mksquashfs"}


def name_of(letter, compressor):
    return f"pack {letter}, {compressor}"


def read_name(letter):
    return f"packed {letter}"


def packed(bench, letter):
    if letter == "J":
        dataset = datasets.j(bench.work, bench.quick)
    else:
        dataset = datasets.s(bench.work, bench.quick, "zstd", bench.tree)
    reader.warm(*(dataset.source / file for file in dataset.files()))
    for compressor in COMPRESSORS:
        if bench.wants(PACKING):
            packing(bench, letter, dataset, compressor)
    if bench.wants(sections.FRESH):
        reading(bench, letter, dataset)


def command(bench, packer, source, image, compressor=None):
    if packer == PACK:
        chosen = ["--compressor", compressor, "--read-cost", "128K"] if compressor else []
        return [bench.archfs, "pack", "--quiet", "--force", *chosen, source, image]
    chosen = ["-comp", compressor] if compressor else []
    return ["mksquashfs", source, image, "-noappend", "-quiet", "-no-progress", *chosen]


def packing(bench, letter, dataset, compressor):
    name = name_of(letter, compressor)
    image = bench.work / "packed.sqfs"
    total = sum((dataset.source / file).stat().st_size for file in dataset.files())
    bench.table.note(name, f"{dataset.about()}.")
    for number in range(bench.rounds):
        for packer in turned([MKSQUASHFS, PACK], number):
            image.unlink(missing_ok=True)
            wall, processor = timed(command(bench, packer, dataset.source, image, compressor))
            files = len(dataset.files())
            bench.table.add(name, packer, PACKING, number, wall, total, files)
            bench.table.add(name, packer, PROCESSOR, number, processor, total, files)
            bench.table.add(name, packer, SIZE, number, 0, image.stat().st_size, 0)
    image.unlink()


def timed(words):
    """Elapsed seconds and CPU seconds of a command."""
    start = time.perf_counter()
    child = subprocess.Popen([str(word) for word in words], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    wall = time.perf_counter() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, words)
    return wall, usage.ru_utime + usage.ru_stime


def reading(bench, letter, dataset):
    name = read_name(letter)
    readers = bench.named(systems.KERNEL, systems.ARCHFS)
    readers += [limited(bench, dataset, system) for system in bench.named(systems.ARCHFS)]
    taking_part = []
    for packer, by in BY.items():
        image = datasets.made(bench.work / f"{dataset.listing.stem}.{packer.replace(' ', '-')}.sqfs",
                              lambda part, packer=packer: make(bench, packer, dataset.source, part))
        taking_part += [Packed(system, f"{system.name}, {by}", image) for system in readers]
    bench.table.note(name, f"{dataset.about()}; images made without any option.")
    with bench.begun(dataset, taking_part) as began:
        interleaved(bench, dataset._replace(name=name), began, [Group((sections.FRESH,), first_epoch)])


def limited(bench, dataset, system):
    total = sum((dataset.source / file).stat().st_size for file in dataset.files())
    return systems.of_archfs(bench.archfs, system.version, LIMITED, system.form, "--cache", str(total // 10))


def make(bench, packer, source, part):
    # The packer chooses the format by the file's suffix.
    image = part.with_name(f"{part.name}.sqfs")
    timed(command(bench, packer, source, image))
    image.rename(part)


def first_epoch(visit):
    yield sections.FRESH, visit.measure("read", visit.root, visit.dataset.listing, 4,
                                         visit.seed(0))


class Packed:
    """A system that shows one given image instead of the dataset's own."""

    def __init__(self, system, name, image):
        self.system, self.name, self.image, self.form = system, name, image, system.form

    def begin(self, _dataset):
        return self.system.begin(Only(self.image))

    def shown(self, began, mount_point):
        return self.system.shown(began, mount_point)

    def run(self, began, root):
        return self.system.run(began, root)


class Only:
    """A dataset that consists of one image."""

    def __init__(self, image):
        self.image = image

    def archive(self, _form):
        return self.image
