"""Tables, measurements.csv and the chart of scripts/bench/nfs."""

import csv
import statistics
import sys

from benchlib import chart, tables
from benchlib.loaders.phases import READY
from benchlib.rounds import Table

FIRST = "first epoch, from job start"
CHARTED = 8
HEADS = ["round trip, ms", "workers", "way", "job start to first batch, ms", "first epoch, images/s", "MB/s",
         "second epoch, images/s", "MB/s", "requests, first epoch", "second"]

HOW_TO_READ = """\
Command: `scripts/bench/nfs`. Server and client of NFS 4.2 are those of one Linux kernel, in a virtual machine, with half of
the round trip as a delay of netem on each side. The export is in the server's memory. Each job mounts the export anew, lists
all files as torchvision's ImageFolder does, and reads two epochs in two shuffled orders. The workers read batches of 32
whole files in turn, and compute a checksum, which is the same for all ways. Nothing is decoded.

QEMU emulates the machine, and its clock counts instructions. Other programs on the host therefore change no figure, as long
as the machine does not wait for files of the host; all files that jobs use are in its memory. One core
carries server, client and loader, and does 8 instructions per nanosecond, about as much as several cores of a node. To get
this, delays and the times of NFS's attribute cache are 8 times as long in the machine, and measured times are divided by 8.
Other timers, such as those of TCP, are not longer.

The model is right about how often each way waits for the server. Where the CPU is the limit, real nodes differ, in both
directions: cache misses and context switches cost nothing here, which favors FUSE (squashfuse_ll, archfs); one core does
nothing in parallel, which favors NFS and /dev/shm; and the work of the server counts, which favors ways with few requests.

- The first epoch counts from the start of the job. To mount or to unpack, and to list the files, are part of it.
- The second epoch reads from memory, because all data fits: from the page cache of NFS, of the mount, or from /dev/shm.
- Requests are compounds of NFS that the server received (lower is better). All other figures: higher is better, except the
  time to the first batch.
- The tar has its index beside it, as `archfs index` or the first mount writes it.
"""


def tell(row):
    print(f"round {row['round'] + 1}, {row['delay']:g} ms, {row['workers']} workers, {row['way']}: "
          f"{row['files'] / row['epoch 1']:.0f} images/s", file=sys.stderr, flush=True)


def figures(values, digits=0):
    """The median, and the range if it shows."""
    texts = [f"{value:,.{digits}f}" for value in (statistics.median(values), min(values), max(values))]
    return texts[0] if texts[1] == texts[2] else f"{texts[0]} ({texts[1]}-{texts[2]})"


class Measured:
    """The rows of all jobs, as node.py prints them."""

    def __init__(self, rows):
        self.rows = rows
        if len({row["checksum"] for row in rows}) != 1:
            sys.exit("bench: not all jobs read the same")

    def groups(self):
        """The rows of each delay, number of workers and way, of all rounds."""
        found = {}
        for row in self.rows:
            found.setdefault((row["delay"], row["workers"], row["way"]), []).append(row)
        return found

    def lines(self):
        rows = []
        for (delay, workers, way), group in self.groups().items():
            of = lambda get: [get(row) for row in group]
            cells = [figures(of(lambda row: 1e3 * row["first batch"]))]
            for epoch in ["epoch 1", "epoch 2"]:
                cells.append(figures(of(lambda row: row["files"] / row[epoch])))
                cells.append(figures(of(lambda row: row["bytes"] / 1e6 / row[epoch])))
            cells += [figures(of(lambda row: row[f"requests {number}"]["all"])) for number in (1, 2)]
            rows.append([f"{delay:g}", str(workers), way, *cells])
        return tables.markdown(HEADS, rows)

    def chart(self):
        """First batches and first epochs of one number of workers, a row for each delay."""
        workers = CHARTED if any(row["workers"] == CHARTED for row in self.rows) else self.rows[0]["workers"]
        title, table = f"Data on NFS, {workers} workers", Table()
        for row in self.rows:
            if row["workers"] == workers:
                for phase, seconds in [(READY, row["first batch"]), (FIRST, row["epoch 1"])]:
                    table.add(title, row["way"], f"{phase}, {row['delay']:g} ms", row["round"], seconds,
                              row["bytes"], row["files"])
        return chart.of_dataset(table, title, [])

    def write(self, directory, facts):
        directory.mkdir(parents=True, exist_ok=True)
        with open(directory / "measurements.csv", "w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            times = ["first batch", "epoch 1", "epoch 2"]
            operations = list(self.rows[0]["requests 1"])
            writer.writerow(["round", "delay_ms", "workers", "way", "files", "bytes", "first_batch_s", "epoch_1_s",
                             "epoch_2_s", *(f"requests_{number}_{name}" for number in (1, 2) for name in operations)])
            for row in self.rows:
                writer.writerow([row["round"] + 1, row["delay"], row["workers"], row["way"], row["files"], row["bytes"],
                                 *(f"{row[name]:.6f}" for name in times),
                                 *(row[f"requests {number}"][name] for number in (1, 2) for name in operations)])
        (directory / "nfs.svg").write_text(self.chart())
        lines = [f"# Data on NFS, over a network with delay, measured {facts['date']}", "",
                 *(f"- {name}: {text}" for name, text in facts.items()), "", *HOW_TO_READ.splitlines(), "",
                 "![First batches and first epochs](nfs.svg)", "",
                 "Medians of the rounds, with the range in parentheses where it shows:", "", *self.lines()]
        (directory / "README.md").write_text("\n".join(lines) + "\n")
