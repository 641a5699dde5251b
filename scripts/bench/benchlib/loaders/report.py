"""README.md with tables, measurements.csv and the charts of scripts/bench/loaders."""

import statistics

from benchlib import chart, tables
from benchlib.loaders import phases
from benchlib.loaders.forms import MEMORY
from benchlib.loaders.measure import DATASET
from benchlib.rounds import Table

HOW_TO_READ = """\
torch's DataLoader reads the same JPEGs in all forms, in shuffled batches of 64. All forms are read in the same order,
except WebDataset, which shuffles its shards and a buffer of 1,000 JPEGs in each worker. torchvision's ImageFolder reads
the directory, /dev/shm and every mount. A checksum compares what each epoch delivered (files, bytes, contents, labels)
with the tar. Its time is included for all forms.

- made from the tar: what is done once, from a tar in the page cache until everything is on the disk.
  Packages are imported already. squashfuse_ll reads the image that archfs pack makes.
- job start to first batch, and to the end of the first epoch: nothing of the data is in memory ({cold}).
  To unpack or to mount, and to list the files, are part of it. The storage is a disk of this machine; a
  parallel file system takes longer for each file, not for each byte.
- first epoch: on a fresh mount, the archive or file in the page cache, which is free for others to take.
  The bytes are looked at and not decoded, so that the loader is what is measured.
- epoch with decoding: the same, each image decoded by Pillow and made 224 x 224 pixels.
- memory held: files in /dev/shm, or what the daemon has allocated after two epochs. Memory of the loader:
  what its processes have allocated in the middle of an epoch. Neither counts the page cache.
- lines changed: lines of code of the loader that are not in that of the directory, + lines that convert.
"""


def write(table, forms, facts, directory):
    directory.mkdir(parents=True, exist_ok=True)
    tables.write_csv(table, directory / "measurements.csv")
    (directory / "loaders.svg").write_text(chart.of_dataset(main_phases(table), DATASET, []))
    (directory / "all.svg").write_text(chart.of_dataset(table, DATASET, []))
    (directory / "README.md").write_text(summary(table, forms, facts))


def main_phases(table):
    """A table of the most important phases."""
    chosen = Table()
    for row in table.of(DATASET):
        named = row.phase in (phases.PREPARING, phases.READY, phases.JOB, phases.HELD)
        if named or row.phase.startswith(("second", "epoch with")):
            chosen.add(*row)
    return chosen


def summary(table, forms, facts):
    lines = [f"# Ways to keep a dataset of images, measured {facts['date']}", ""]
    lines += [f"- {name}: {text}" for name, text in facts.items()]
    lines += ["", *HOW_TO_READ.format(cold=facts["cold"]).splitlines(), "",
              "Figures are medians of interleaved rounds, with the range in parentheses. Ratios are medians of the "
              "ratios within each round.", "", "## Compared with unpacking into memory", "",
              f"Time, compared with that of the {MEMORY} (lower is better).", "", *headline(table, forms), ""]
    lines += ["![What matters most](loaders.svg)", "", "## All figures", ""]
    lines += [*table.notes.get(DATASET, []), ""]
    rates = [one for one in table.phases(DATASET) if one not in phases.TIMES + phases.SIZES]
    for chosen in [phases.TIMES, phases.SIZES, rates]:
        lines += [*some(table, chosen), ""]
    lines += ["How many times as fast archfs is:", "", *tables.ratio_table(table, DATASET), "",
              "![All phases](all.svg)"]
    return "\n".join(lines) + "\n"


def headline(table, forms):
    compared = [phase for phase in table.phases(DATASET) if phase not in phases.SIZES]
    rows = [[form.name, *(ratio(table, form.name, phase) for phase in compared),
             size(table, form.name, phases.DISK), size(table, form.name, phases.HELD), form.changes]
            for form in forms]
    return tables.markdown(["", *compared, "MB on disk", "MB held", "lines changed"], rows)


def ratio(table, name, phase):
    own, other = ({row.round: row.seconds for row in table.of(DATASET, one, phase)} for one in [name, MEMORY])
    ratios = [own[number] / other[number] for number in own if number in other]
    if not ratios:
        return ""
    found = statistics.median(ratios)
    # Unpacking into memory is repeated in every job.
    text = f"{found:.2f}" if found < 10 else f"{found:.0f}"
    return f"{text} in every job" if (name, phase) == (MEMORY, phases.PREPARING) else text


def size(table, name, phase):
    rows = table.of(DATASET, name, phase)
    return f"{statistics.median(row.bytes for row in rows) / 1e6:.0f}" if rows else ""


def some(table, chosen):
    heads = ["", *(f"{phase}, {tables.unit(phase)}" for phase in chosen)]
    return tables.markdown(heads, [
        [name, *(tables.figures(table.of(DATASET, name, phase), phase) for phase in chosen)]
        for name in table.systems(DATASET)])
