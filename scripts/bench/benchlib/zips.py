"""The sections about ZIP archives: the members of J stored, and those of S compressed by deflate.

archfs on the ZIP archive is compared with archfs on the tar of the same files, with ratarmount and fuse-zip on the ZIP
archive, and with the plain directory. None of them saves an index of a ZIP archive.
"""

import shutil

from benchlib import datasets, programs, sections, systems
from benchlib.rounds import Group, interleaved

ARCHFS_ZIP, DIRECT_ZIP = "archfs, zip", "archfs --direct, zip"


def zipped(bench, letter):
    """J is read whole. Of S, 2,000 files are read, since ratarmount and fuse-zip take minutes for all."""
    if letter == "J":
        dataset = whole = datasets.j(bench.work, bench.quick)._replace(name="J, zip")
        form = "stored.zip"
    else:
        whole = datasets.s(bench.work, bench.quick, "zstd", bench.tree)._replace(name="S, zip")
        dataset = whole.sample(500 if bench.quick else 2_000)
        form = "zip"
    bench.table.note(dataset.name, f"{whole.about()}; of these files {len(dataset.files())} are read.")
    taking_part = list(peers(bench, form))
    with bench.begun(whole, taking_part) as began:
        groups = [Group((sections.FRESH, sections.SECOND), sections.fresh),
                  Group((sections.ONE,), sections.one, without=("ratarmount", "fuse-zip"))]
        interleaved(bench, dataset, began, groups)


def peers(bench, form):
    yield from bench.named(systems.PLAIN)
    for system in bench.named("ratarmount"):
        # With its index in memory: it saves none for a ZIP archive.
        command = tuple(word for word in system.command if word not in ("--index-file", "{index}"))
        yield system._replace(form=form, command=command, index=(), index_path="")
    program = shutil.which("fuse-zip")
    if program:
        yield systems.Mount("fuse-zip", programs.version(program, "--version"), form,
                            (program, "-r", "{archive}", "{mount_point}"))
    for system in bench.named(systems.ARCHFS_TAR, systems.DIRECT_TAR):
        yield system
        name = {systems.ARCHFS_TAR: ARCHFS_ZIP, systems.DIRECT_TAR: DIRECT_ZIP}[system.name]
        yield system._replace(name=name, form=form, index=(), index_path="")
