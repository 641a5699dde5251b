"""The rounds: all forms are created, then read from cold storage, from the page cache, and with decoding.

A group of phases goes through all forms, so that figures that are compared were measured within a minute or
two. The order of the forms rotates from round to round. What every loader delivered is compared with the tar.
"""

import os
import pathlib
import subprocess
import sys
import tarfile
import time
import zlib
from collections.abc import Callable
from typing import NamedTuple

from benchlib import reader
from benchlib.loaders import forms, phases
from benchlib.rounds import Table, turned

DATASET = "images"
DROP = pathlib.Path("/proc/sys/vm/drop_caches")


class Bench(NamedTuple):
    """`ask` is the server; `workers` are the numbers of loader workers, the first of which is used where one
    number is enough; `drop` drops all kernel caches for a cold start, not only the files' pages.
    """
    images: forms.Images
    forms: list
    ask: Callable
    mount_point: pathlib.Path
    table: Table
    rounds: int
    workers: tuple
    drop: bool
    # What the first reader delivered; all others must deliver the same.
    seen: dict


def rounds(bench):
    bench.seen["checksum"] = contents(bench.images.tar)
    for number in range(bench.rounds):
        one_round(bench, number, turned(bench.forms, number))
        # Lets the caller show the figures so far.
        yield number


def one_round(bench, number, taking_part):
    def each(what, measured):
        for form in taking_part:
            print(f"round {number + 1}: {what}, {form.name}", file=sys.stderr, flush=True)
            for phase, seconds, size in measured(form):
                bench.table.add(DATASET, form.name, phase, number, seconds, size, bench.images.count)

    reader.warm_archive(bench.images.tar)
    each("made", prepared)
    each("cold", lambda form: cold(bench, form, number))
    for form in taking_part:
        for file in form.files():
            reader.warm_archive(file)
    for workers in bench.workers:
        each(f"{workers} workers",
             lambda form, workers=workers: warm(bench, form, number, workers, "checksum"))
    each("decoding", lambda form: warm(bench, form, number, bench.workers[0], "decode"))


# Each yields phases with seconds and bytes.

def prepared(form):
    """Creates the form from a tar in the page cache, until it is on disk."""
    os.sync()
    start = time.perf_counter()
    form.prepare()
    os.sync()
    yield phases.PREPARING, time.perf_counter() - start, 0
    yield phases.DISK, 0, forms.on_disk(form.files())


def cold(bench, form, number):
    """A job from its start, with nothing of the archive in memory."""
    forget(bench, form)
    start = time.perf_counter()
    with form.begun(bench.mount_point) as (path, held):
        begun = time.perf_counter() - start
        first, second = read(bench, form, path, 100 * number, bench.workers[0], "checksum", epochs=2)
        yield phases.READY, begun + first["first"], 0
        yield phases.JOB, begun + first["seconds"], first["bytes"]
        yield phases.second(bench.workers[0]), second["seconds"], second["bytes"]
        yield phases.HELD, 0, held()
        yield phases.LOADER, 0, second["memory"]


def warm(bench, form, number, workers, load):
    """Epochs on a fresh mount."""
    reader.warm(*form.files())
    phase = (phases.fresh if load == "checksum" else phases.decoding)(workers)
    with form.begun(bench.mount_point) as (path, _):
        epoch, = read(bench, form, path, 100 * number + workers, workers, load, epochs=1)
        yield phase, epoch["seconds"], epoch["bytes"]


def read(bench, form, path, seed, workers, load, epochs):
    found = bench.ask(reader=form.reader, path=str(path), load=load, images=bench.images.count,
                      workers=workers, seed=seed, epochs=epochs)
    for number, epoch in enumerate(found):
        same(bench, form, load, (epoch["files"], epoch["bytes"], epoch["checksum"]))
        # WebDataset shuffles by itself.
        if form.reader != "webdataset":
            same(bench, form, f"order of {load}, {seed}, {number}", epoch["order"])
    return found


def same(bench, form, what, found):
    expected = bench.seen.setdefault(what, found)
    if expected != found:
        sys.exit(f"bench-loaders: {form.name}, {what}: {found} was read, not {expected}")


def contents(tar):
    """Files, bytes and checksum as epoch.py computes them, from the tar itself."""
    files = size = checksum = 0
    classes = {}
    with tarfile.open(tar, "r|") as archive:
        for member in archive:
            if member.isreg():
                data = archive.extractfile(member).read()
                label = classes.setdefault(member.name.split("/")[-2], len(classes))
                files, size = files + 1, size + len(data)
                checksum += zlib.crc32(data) * (2 * label + 1)
    if list(classes) != sorted(classes):
        sys.exit("bench-loaders: the classes in the tar are not in order")
    return files, size, f"{checksum % 2**64:016x}"


def forget(bench, form):
    """Drops the files from the page cache, and all other kernel caches if requested."""
    os.sync()
    reader.forget(*form.files())
    if bench.drop:
        DROP.write_text("3\n")
        # Reading the dropped programs back is not part of the job.
        for mounting in (one for one in bench.forms if isinstance(one, forms.Mounted)):
            program = mounting.mount.command[0]
            reader.warm(program)
            subprocess.run([program, "--help"], check=False, capture_output=True)
        subprocess.run(["tar", "--version"], check=False, capture_output=True)
