"""What is measured on which dataset. A section fills the table of a `Bench`."""

import contextlib
import os
import pathlib
import time
from typing import NamedTuple

from benchlib import datasets, reader, systems
from benchlib.rounds import Group, Table, interleaved, turned

FRESH, SECOND = "first epoch, fresh mount", "second epoch"
WALK, WALKED = "walk and stat", "first epoch after a walk"
ONE, SIXTEEN, SIXTY_FOUR = (f"first epoch, {count}" for count in ("1 reader", "16 readers", "64 readers"))
PYTHON, PYTHON_SECOND = "first epoch, Python", "second epoch, Python"
IN_ORDER, COLD, CACHED = "in order, 1 reader", "4 KiB at random, cold", "4 KiB at random, cached"
LISTED, WALKED_ALL, MEMORY = "mount to first listing", "walk of everything", "memory at most"
MOUNT_CACHE = 256 << 20


class Bench(NamedTuple):
    """What the sections share. `mount_point` is the mount point."""
    work: pathlib.Path
    mount_point: pathlib.Path
    quick: bool
    rounds: int
    tree: pathlib.Path
    phases: list
    systems: list
    archfs: pathlib.Path
    epoch: pathlib.Path
    table: Table

    def wants(self, phase):
        return not self.phases or any(text in phase for text in self.phases)

    def named(self, *names):
        return [system for system in self.systems if system.name in names]

    @contextlib.contextmanager
    def begun(self, dataset, taking_part):
        with contextlib.ExitStack() as stack:
            yield {system: stack.enter_context(system.begin(dataset)) for system in taking_part}


# Epochs over many files.

def fresh(visit):
    read = ("read", visit.root, visit.dataset.listing, 4)
    yield FRESH, visit.measure(*read, visit.seed(0))
    read_again_below(visit)
    yield SECOND, visit.measure(*read, visit.seed(1))


def read_again_below(visit):
    """Makes the second epoch of a plain directory the second read of its pages, as it is for all systems.

    At the second use the kernel moves a page from its inactive to its active list, which costs as much as
    copying it. The pages of a plain directory were read many times before, so they are dropped and read once.
    Those of a tmpfs cannot be dropped.
    """
    if visit.system.name == systems.PLAIN:
        reader.forget(*(visit.root / file for file in visit.dataset.files()))
        visit.measure("read", visit.root, visit.dataset.listing, 4, visit.seed(0))


def walked(visit):
    yield WALK, visit.measure("walk", visit.root)
    yield WALKED, visit.measure("read", visit.root, visit.dataset.listing, 4, visit.seed(2))


def one(visit):
    yield ONE, visit.measure("read", visit.root, visit.dataset.listing, 1, visit.seed(3))


def sixteen(visit):
    yield SIXTEEN, visit.measure("read", visit.root, visit.dataset.listing, 16, visit.seed(0))


def sixty_four(visit):
    yield SIXTY_FOUR, visit.measure("read", visit.root, visit.dataset.listing, 64, visit.seed(0))


def python(visit):
    yield PYTHON, visit.measure_python(visit.root, visit.dataset.listing, 4, visit.seed(4))
    read_again_below(visit)
    yield PYTHON_SECOND, visit.measure_python(visit.root, visit.dataset.listing, 4, visit.seed(5))


EPOCHS = [Group((FRESH, SECOND), fresh), Group((WALK, WALKED), walked), Group((ONE,), one),
          Group((SIXTEEN,), sixteen), Group((SIXTY_FOUR,), sixty_four)]


def many_files(bench, dataset, groups, taking_part):
    with bench.begun(dataset, taking_part) as began:
        interleaved(bench, dataset, began, groups)


def j(bench):
    dataset = datasets.j(bench.work, bench.quick)
    bench.table.note(dataset.name, f"{dataset.about()}, like JPEGs: their bytes do not compress.")
    many_files(bench, dataset, [*EPOCHS, Group((PYTHON, PYTHON_SECOND), python)], bench.systems)


def s(bench, compressor):
    """Systems that do not depend on the compressor take part only with zstd, except for the references."""
    dataset = datasets.s(bench.work, bench.quick, compressor, bench.tree)
    held = ", ".join(sorted(os.listdir(dataset.source))[:3])
    bench.table.note(dataset.name, f"{dataset.about()}: {held}.")
    references = [systems.PLAIN, systems.EROFS]
    taking_part = [system for system in bench.systems
                   if compressor == "zstd" or system.form == "squashfs" or system.name in references]
    # These take minutes, because they read small files one by one in Python, or decode again for each.
    slow = [system.name for system in taking_part
            if system.name.startswith("squashfuse ") or system.name.startswith("ratarmount")]
    groups = [group._replace(without=tuple(slow) if group.measure in (one, sixteen, sixty_four, walked) else ())
              for group in EPOCHS]
    many_files(bench, dataset, groups, taking_part)


# One large file.

def in_order(visit):
    yield IN_ORDER, visit.measure("sequence", visit.root / "text")


def at_random(visit, reads):
    """The same offsets twice; before the second time the pages of the mounted file are dropped.

    The pages of a plain directory or a tmpfs are kept, because below them there is only a disk or nothing.
    """
    file = visit.root / "text"
    offsets = ("offsets", file, 4, reads, visit.seed(0))
    yield COLD, visit.measure(*offsets)
    if visit.system.form != "directory":
        reader.forget(file)
        left = reader.resident(file)
        if left:
            raise OSError(f"{left} bytes of {file} ({visit.system.name}) cannot be dropped")
    yield CACHED, visit.measure(*offsets)


def big_file(bench):
    """No tars take part, because a tar stores the file uncompressed."""
    dataset = datasets.big(bench.work, bench.quick)
    reads = 250 if bench.quick else 5_000
    size = (dataset.source / "text").stat().st_size
    bench.table.note(dataset.name, f"One file of {size / 2**20:.0f} MiB, compressed "
                     f"{size / dataset.archive('squashfs').stat().st_size:.1f}:1 by zstd; at random: "
                     f"{reads} reads by each of 4 processes, twice at the same offsets.")
    groups = [Group((IN_ORDER,), in_order), Group((COLD, CACHED), lambda visit: at_random(visit, reads))]
    taking_part = [system for system in bench.systems if system.form != "tar"]
    with bench.begun(dataset, taking_part) as began:
        interleaved(bench, dataset, began, groups)


# Mounting.

def mount(bench):
    directories = datasets.MANY_DIRECTORIES_QUICK if bench.quick else datasets.MANY_DIRECTORIES
    image = datasets.many_image(bench.work, directories)
    reader.warm_archive(image)
    name = "mount"
    bench.table.note(name, (
        f"An image of {1000 * directories} small files in directories of 1,000, {image.stat().st_size / 1e6:.0f} MB; "
        "from the start of the command that mounts until the names of one directory are listed. archfs has "
        f"--cache {MOUNT_CACHE >> 20}M; its memory is the most that its daemon had after a walk with stat of "
        "everything (VmHWM)."))
    taking_part = [limited(bench, system) for system in bench.systems
                   if system.form == "squashfs" and system.name != systems.DIRECT]
    for number in range(bench.rounds):
        for system in turned(taking_part, number):
            with first_listing(bench, name, system, image, number) as root:
                if system.name == systems.ARCHFS:
                    walk = reader.measure(bench.epoch, "walk", root)
                    bench.table.add(name, system.name, WALKED_ALL, number, walk["seconds"], 0, walk["files"])
                    most = reader.memory(reader.archfs_daemon(bench.archfs, root))["VmHWM"]
                    bench.table.add(name, system.name, MEMORY, number, 0, most, 0)


def limited(bench, system):
    """archfs with a small cache, to show its other memory."""
    if system.name != systems.ARCHFS:
        return system
    return systems.of_archfs(bench.archfs, system.version, system.name, system.form,
                             "--cache", f"{MOUNT_CACHE >> 20}M")


@contextlib.contextmanager
def first_listing(bench, name, system, archive, number):
    start = time.perf_counter()
    with system.mounted(archive, bench.mount_point) as root:
        names = os.listdir(root / datasets.many_directory(0))
        bench.table.add(name, system.name, LISTED, number, time.perf_counter() - start, 0, len(names))
        if len(names) != 1000:
            raise OSError(f"{system.name} lists {len(names)} names, not 1000")
        yield root
