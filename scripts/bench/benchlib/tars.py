"""The sections about compressed tars and the index of a tar: archfs compared with ratarmount."""

import hashlib
import os
import random
import statistics
import time
import zlib

from benchlib import datasets, reader, sections, systems
from benchlib.rounds import Group, interleaved

SPACING = 1 << 20
SINGLE_READS, READ_SIZE = 64, 100_000
MEDIAN, SLOWEST = "one read of 100 KB, median", "one read of 100 KB, slowest"
MAKING, SIZE = "making the index", "size of the index"


def compressed(bench, letter):
    """Compressed by gzip: 1 GB of J, which hardly compresses but must be decoded completely, and S, which is
    expensive to decode. The epoch over S reads 2,000 of its files.
    """
    if letter == "J":
        dataset = whole = datasets.j(bench.work, bench.quick).part(62)._replace(name="J, tar.gz")
    else:
        whole = datasets.s(bench.work, bench.quick, "zstd", bench.tree)._replace(name="S, tar.gz")
        dataset = whole.sample(500 if bench.quick else 2_000)
    bench.table.note(dataset.name, f"{whole.about()}; of these files {len(dataset.files())} are read.")
    taking_part = [of_form(bench, system) for system in bench.named(systems.PLAIN, "ratarmount",
                                                                    systems.ARCHFS_TAR)]
    # The archive is named after all files, not after those that are read.
    with bench.begun(whole, taking_part) as began:
        interleaved(bench, dataset, began, [Group((sections.FRESH,), first_epoch)])
        interleaved(bench, whole, began, [Group((MEDIAN, SLOWEST), singles)])
        spacing = decode_spacing(whole.archive("tar.gz"))
    bench.table.note(dataset.name, f"zlib decodes 1 MiB of it, the spacing of seek points, in "
                     f"{1e3 * spacing:.2f} ms.")


def of_form(bench, system):
    """The same system for a compressed tar."""
    return system if system.form == "directory" else system._replace(form="tar.gz")


def first_epoch(visit):
    yield sections.FRESH, visit.measure("read", visit.root, visit.dataset.listing, 4,
                                         visit.seed(0))


def singles(visit):
    """A few reads of 100 KB from members far apart, each timed."""
    large = [file for file in visit.dataset.files()
             if (visit.dataset.source / file).stat().st_size >= READ_SIZE]
    files = random.Random(visit.round).sample(large, min(SINGLE_READS, len(large)))
    taken, digest = [], hashlib.sha256()
    for file in files:
        start = time.perf_counter()
        descriptor = os.open(visit.root / file, os.O_RDONLY)
        data = os.pread(descriptor, READ_SIZE, 0)
        os.close(descriptor)
        taken.append(time.perf_counter() - start)
        digest.update(data)
    if taken:
        read = {"files": 1, "bytes": READ_SIZE, "checksum": digest.hexdigest()}
        yield MEDIAN, {**read, "seconds": statistics.median(taken)}
        yield SLOWEST, {**read, "seconds": max(taken)}


def decode_spacing(archive):
    """Median seconds that zlib takes for 1 MiB, over the first 64 MiB."""
    decoder, taken = zlib.decompressobj(wbits=31), []
    with open(archive, "rb") as stream:
        while len(taken) < 64 and not decoder.eof:
            start, decoded = time.perf_counter(), 0
            while decoded < SPACING and not decoder.eof:
                data = decoder.unconsumed_tail or stream.read(1 << 14)
                decoded += len(decoder.decompress(data, SPACING - decoded))
            taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def index(bench):
    """1.3 million members in an uncompressed tar. ratarmount is slow at it and runs once, and not with
    --quick.
    """
    directories = datasets.MANY_DIRECTORIES_QUICK if bench.quick else datasets.MANY_DIRECTORIES
    archive = datasets.many_tar(bench.work, directories)
    reader.warm_archive(archive)
    name, members = "tar index", 1001 * directories + 1
    bench.table.note(name, f"{members} members, {archive.stat().st_size / 1e6:.0f} MB; memory is the most "
                     "that the daemon had until a directory of 1,000 names was listed.")
    for system in bench.named("ratarmount", systems.ARCHFS_TAR):
        once = system.name == "ratarmount"
        if once and bench.quick:
            continue
        for number in range(1 if once else bench.rounds):
            start = time.perf_counter()
            system.make_index(archive)
            bench.table.add(name, system.name, MAKING, number, time.perf_counter() - start, 0, members)
            saved = system.saved_index(archive).stat().st_size
            bench.table.add(name, system.name, SIZE, number, 0, saved, 0)
            with sections.first_listing(bench, name, system, archive, number):
                pid = reader.daemon(["ratarmount", "archfs"], archive)
                most = reader.memory(pid)["VmHWM"]
                bench.table.add(name, system.name, sections.MEMORY, number, 0, most, 0)
