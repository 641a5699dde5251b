"""The measurements as CSV, JSON, and Markdown tables, which are also printed on the terminal."""

import csv
import json
import statistics

from benchlib import packing, sections
from benchlib.loaders import phases
from benchlib.systems import ARCHFS, ARCHFS_TAR

# Phases shown in seconds instead of a rate, and those that only have bytes.
TIMES = [sections.WALK, sections.WALKED_ALL, sections.LISTED, "making the index",
         "one read of 100 KB, median", "one read of 100 KB, slowest", *phases.TIMES]
SIZES = [sections.MEMORY, "size of the index", packing.SIZE, *phases.SIZES]


def write_csv(table, path):
    with open(path, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["dataset", "system", "phase", "round", "seconds", "bytes", "files",
                         "bytes_per_second"])
        for row in table.rows:
            rate = round(row.bytes / row.seconds) if row.seconds and row.bytes else ""
            writer.writerow([*row[:4], f"{row.seconds:.6f}", row.bytes, row.files, rate])


def write_json(table, facts, results, path):
    everything = {"machine": facts, "rows": [row._asdict() for row in table.rows], "notes": table.notes,
                  "targets": [{**one._asdict(), "met": one.met()} for one in results]}
    path.write_text(json.dumps(everything, indent=1) + "\n")


# Markdown.

def summary(table, facts, results, title, charts=()):
    """The whole document; `charts` are (dataset, file name)."""
    lines = [f"# {title}", ""]
    lines += [f"- {name}: {text}" for name, text in facts.items()]
    lines += ["", "Medians of interleaved rounds, in brackets the least and the most of them; ratios are "
              "medians of the ratios within each round.",
              "Every reader's checksum was the same for all systems of a round.", ""]
    if results:
        lines += ["## Targets", "", *target_table(results), ""]
        lines += [f"![Targets]({file})\n" for name, file in charts if name == "targets"]
    for dataset in table.datasets():
        lines += [f"## {dataset}", "", *table.notes.get(dataset, []), ""]
        lines += [*rate_table(table, dataset), ""]
        ratios = ratio_table(table, dataset)
        if ratios:
            lines += [f"How many times as fast {subject(table, dataset)} is:", "", *ratios, ""]
        lines += [f"![{dataset}]({file})\n" for name, file in charts if name == dataset]
    return "\n".join(lines).rstrip() + "\n"


def target_table(results):
    rows = [[one.dataset, one.phase, one.against, f"{one.needed:.3g}", f"{one.ratio():.2f}",
             f"{min(one.ratios):.2f}-{max(one.ratios):.2f}", "met" if one.met() else "**not met**"]
            for one in results]
    return markdown(["dataset", "phase", "against", "needed", "measured", "least-most", ""], rows)


def rate_table(table, dataset):
    phases = table.phases(dataset)
    heads = ["", *(f"{phase}, {unit(phase)}" for phase in phases)]
    return markdown(heads, [[system, *(figures(table.of(dataset, system, phase), phase) for phase in phases)]
                            for system in table.systems(dataset)])


def ratio_table(table, dataset):
    phases = [phase for phase in table.phases(dataset) if phase not in SIZES]
    others = [system for system in table.systems(dataset) if system != subject(table, dataset)]
    rows = [[system, *(f"{ratio:.2f}" if (ratio := median_ratio(table, dataset, system, phase)) else ""
                       for phase in phases)] for system in others]
    return markdown(["against", *phases], rows) if any(any(row[1:]) for row in rows) else []


def subject(table, dataset):
    """Which of archfs's systems is compared with all others."""
    there = table.systems(dataset)
    own = [packing.PACK, f"{ARCHFS}, {packing.BY[packing.PACK]}", ARCHFS]
    return next((name for name in own if name in there), ARCHFS_TAR)


def median_ratio(table, dataset, system, phase):
    own = {row.round: row.seconds for row in table.of(dataset, subject(table, dataset), phase)}
    ratios = [row.seconds / own[row.round] for row in table.of(dataset, system, phase) if row.round in own]
    return statistics.median(ratios) if ratios else None


def is_time(phase):
    """scripts/bench/nfs adds to the names."""
    return phase in TIMES or phase.startswith(phases.READY)


def unit(phase):
    return "MB" if phase in SIZES else "ms" if is_time(phase) else "MB/s"


def value(row):
    """A row in the unit of its phase."""
    if row.phase in SIZES:
        return row.bytes / 1e6
    return 1e3 * row.seconds if is_time(row.phase) else row.bytes / row.seconds / 1e6


def figures(rows, phase):
    values = [value(row) for row in rows if row.phase == phase]
    if not values:
        return ""
    text = short(statistics.median(values))
    return f"{text} ({short(min(values))}-{short(max(values))})" if len(values) > 1 else text


def short(number):
    return f"{number:.0f}" if number >= 20 else f"{number:.2g}" if number < 1 else f"{number:.1f}"


def markdown(heads, rows):
    """Padded, so that it is readable as plain text."""
    columns = list(zip(heads, *rows))
    widths = [max(3, *map(len, column)) for column in columns]
    lines = [heads, ["-" * width for width in widths], *rows]
    return ["| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |"
            for line in lines]
