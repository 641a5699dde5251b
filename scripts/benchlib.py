"""What the benchmarks share: the datasets, fresh mounts, the reader, rounds, tables, the command line.

A contender is a name and a function: given a dataset and a place it is a context that shows the
dataset there on a fresh mount, unmounts it at the end however that comes, and yields the root to read.
What the contenders are, and of which archives, is left to the scripts. All figures of one comparison
come from one run, and what was read is compared by checksum between all.
"""

import argparse
import contextlib
import glob
import json
import os
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
# What is measured of each contender, as it is shown; "first, 1" and "first, 4 py", the reader in Python,
# come last, on mounts of their own.
PHASES = ["walk", "first, 4", "first, 4 py", "first, 1", "second, 4", "third, 4"]


class Dataset(NamedTuple):
    """A folder, the archive of it, and a file with the paths of those files that are read."""
    source: pathlib.Path
    archive: pathlib.Path
    listing: pathlib.Path

    def files(self):
        return self.listing.read_text().splitlines()

    def size(self):
        return sum((self.source / file).stat().st_size for file in self.files())


def call(*command, **options):
    return subprocess.run([str(word) for word in command], check=True, **options)


def build(without=()):
    """The paths of archfs (None if it does not take part) and of the reader."""
    call("cargo", "build", "--quiet", "--release", "--locked", "--example", "epoch", cwd=ROOT)
    if "archfs" not in without:
        call("cargo", "build", "--quiet", "--release", "--locked", cwd=ROOT)
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
    return None if "archfs" in without else target / "archfs", target / "examples" / "epoch"


# Datasets.

def make_j(folder, count):
    """Files of 80 KB mean: a short compressible head as a JPEG has, then noise."""
    rng = random.Random(1)
    for number in range(count):
        place = folder / f"n{number % 100:08d}"
        place.mkdir(parents=True, exist_ok=True)
        size = max(2000, int(rng.gauss(80_000, 25_000)))
        head = b"\xff\xd8\xff\xe0" + bytes(596)
        (place / f"n{number % 100:08d}_{number}.JPEG").write_bytes(head + rng.randbytes(size - 600))


def make_s(folder, count):
    """The Linux source, or what the machine has of headers and documents; the first `count` files."""
    archives = sorted(glob.glob("/usr/src/linux-source-*.tar.xz"))
    if not archives and shutil.which("apt-get"):
        names = subprocess.run(
            ["apt-cache", "search", "--names-only", "^linux-source-[0-9.]+$"],
            capture_output=True, text=True, check=False).stdout.split()
        package = next((name for name in names if name.startswith("linux-source-")), None)
        if package:
            print(f"installing {package} for dataset S")
            subprocess.run(["apt-get", "install", "-y", "-qq", package], check=False,
                           stdout=subprocess.DEVNULL)
            archives = sorted(glob.glob("/usr/src/linux-source-*.tar.xz"))
    folder.mkdir(parents=True)
    if archives:
        call("tar", "-C", folder, "-xf", archives[0])
    else:
        for source in ["/usr/include", "/usr/share"]:
            call("cp", "-a", source, folder)
    if count:
        for file in sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink())[count:]:
            file.unlink()


def made(path, make):
    """`path`, by `make(part)` if it is not there yet; half of it is never left under its name."""
    if not path.exists():
        print(f"making {path.name}", flush=True)
        part = path.with_name(f"{path.name}.part")
        if part.is_dir():
            shutil.rmtree(part)
        part.unlink(missing_ok=True)
        make(part)
        part.rename(path)
    return path


def folder_and_listing(work, letter, quick):
    """The folder of dataset J or S and the list of all its files."""
    make, count = {"J": (make_j, 4_000 if quick else 20_000), "S": (make_s, 10_000 if quick else 0)}[letter]
    source = made(work / (f"{letter}-quick" if quick else letter), lambda part: make(part, count))
    listing = work / f"{source.name}.list"
    files = sorted(str(p.relative_to(source)) for p in source.rglob("*")
                   if p.is_file() and not p.is_symlink())
    listing.write_text("".join(f"{file}\n" for file in files))
    return source, listing


# Mounts.

def plain_directory(dataset, _place):
    return contextlib.nullcontext(dataset.source)


def is_mounted(place):
    """Also when what serves it is dead, which os.path.ismount does not see."""
    escaped = str(place.resolve().parent / place.name)
    for character in ["\\", " ", "\t", "\n"]:
        escaped = escaped.replace(character, f"\\{ord(character):03o}")
    lines = pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
    return any(line.split()[4] == escaped for line in lines)


@contextlib.contextmanager
def mounted(place, mount, unmount):
    """`place` from the command `mount` to the command `unmount`, which comes in any case."""
    place.mkdir(exist_ok=True)
    try:
        call(*mount, stdout=subprocess.DEVNULL)
        if not is_mounted(place):
            sys.exit(f"bench: nothing is mounted at {place} after: {' '.join(map(str, mount))}")
        yield place
    finally:
        if is_mounted(place):
            take_down(place, [str(word) for word in unmount])


def take_down(place, unmount):
    """Readers that were just killed may need a moment to let go."""
    deadline = time.monotonic() + 5
    while True:
        output = subprocess.run(unmount, check=False, capture_output=True, text=True)
        if not is_mounted(place):
            return
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    print(f"bench: {place} is detached while in use: {output.stderr.strip()}", file=sys.stderr)
    call(*(["fusermount3", "-u", "-z"] if os.geteuid() else ["umount", "--lazy"]), place)


def archfs_mount(archfs, archive, place):
    return mounted(place, [archfs, "mount", "--keep", "--quiet", archive, place],
                   [archfs, "unmount", place])


# Measuring.

def warm(*paths):
    for path in paths:
        for file in [path] if path.is_file() else (p for p in path.rglob("*") if p.is_file()):
            with open(file, "rb") as stream:
                while stream.read(1 << 20):
                    pass


def forget(dataset):
    """Drops the pages of the files from the page cache."""
    for file in dataset.files():
        descriptor = os.open(dataset.source / file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def measure(epoch, *arguments):
    """What the reader says; its workers are ended with it when this is interrupted."""
    command = [str(word) for word in (epoch, *arguments)]
    reader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        output = reader.communicate()[0].split()
    except BaseException:
        os.killpg(reader.pid, signal.SIGKILL)
        reader.wait()
        raise
    if reader.returncode:
        raise subprocess.CalledProcessError(reader.returncode, command)
    return {"files": int(output[0]), "bytes": int(output[1]), "seconds": float(output[2]),
            "checksum": output[3]}


def one_round(epoch, contender, dataset, place, seed, phases):
    listing, figures = dataset.listing, {}
    with contender(dataset, place) as root:
        if "walk" in phases:
            figures["walk"] = measure(epoch, "walk", root)
        if "first, 4" in phases:
            figures["first, 4"] = measure(epoch, "read", root, listing, 4, seed)
        if "second, 4" in phases:
            if root == dataset.source:
                forget(dataset)
                measure(epoch, "read", root, listing, 4, seed)
            figures["second, 4"] = measure(epoch, "read", root, listing, 4, seed + 1)
        if "third, 4" in phases:
            figures["third, 4"] = measure(epoch, "read", root, listing, 4, seed + 2)
    if "first, 4 py" in phases:
        with contender(dataset, place) as root:
            measure(epoch, "walk", root)
            loop = ROOT / "scripts" / "epoch.py"
            figures["first, 4 py"] = measure(sys.executable, loop, root, listing, 4, seed + 4)
    if "first, 1" in phases:
        with contender(dataset, place) as root:
            figures["first, 1"] = measure(epoch, "read", root, listing, 1, seed + 3)
    return figures


def interleaved(title, contenders, rounds, measure_one):
    """For each contender the median seconds of what `measure_one(contender, round)` returned.

    That is a dictionary of figures with files, bytes, seconds and checksum; but for the seconds they
    must be the same for all contenders of one round.
    """
    taken = {name: {} for name in contenders}
    for number in range(rounds):
        sums = {}
        for name, contender in contenders.items():
            for what, figure in measure_one(contender, number).items():
                taken[name].setdefault(what, []).append(figure["seconds"])
                sums.setdefault(what, set()).add((figure["files"], figure["bytes"], figure["checksum"]))
        for what, found in sums.items():
            if len(found) != 1:
                sys.exit(f"bench: {title}, {what}: not all read the same: {found}")
    return {name: {what: statistics.median(times) for what, times in one.items()}
            for name, one in taken.items()}


def compare(epoch, title, dataset, place, rounds, contenders, phases=tuple(PHASES)):
    """All contenders, interleaved; what they took is shown, and returned for the JSON file."""
    warm(dataset.source, dataset.archive)
    medians = interleaved(title, contenders, rounds, lambda contender, number: one_round(
        epoch, contender, dataset, place, 10 * number, phases))
    files, size = len(dataset.files()), dataset.size()
    show(f"{title}: {files} files, {size / 1e6:.0f} MB", medians, size)
    return {"files": files, "bytes": size, "seconds": medians}


# Showing.

def show(title, medians, size):
    print(f"\n{title}")
    phases = [what for what in PHASES if any(what in one for one in medians.values())]
    table(phases, {
        name: {what: f"{one[what]:.2f} s" if what == "walk" else speed(size / one[what])
               for what in phases} for name, one in medians.items()}, medians)


def speed(rate):
    return f"{rate / 1e6:.{0 if rate >= 10e6 else 2}f} MB/s"


def table(columns, cells, seconds):
    """A line for each contender: its cells, and how many times as fast archfs is."""
    print(f"{'':18}" + "".join(f"{column:>21}" for column in columns))
    archfs = seconds.get("archfs")
    for name, one in cells.items():
        line = f"{name:18}"
        for column in columns:
            compared = name != "archfs" and archfs and archfs.get(column)
            faster = f"  {seconds[name][column] / archfs[column]:.2f}x" if compared else ""
            line += f"{one[column]:>12}{faster:>9}"
        print(line.rstrip())
    if archfs and len(cells) > 1:
        print("(Nx: archfs is N times as fast as this)", flush=True)


# The command line.

def arguments(document, contenders):
    parser = argparse.ArgumentParser(description=document,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--only", help="what has this title, or else all whose titles contain this")
    parser.add_argument("--without", action="append", default=[], choices=contenders,
                        help="leave out this contender")
    parser.add_argument("--work", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    args.rounds = args.rounds or (1 if args.quick else 3)
    return args


def chosen(titles, only):
    exact = [title for title in titles if title == only]
    found = exact or [title for title in titles if not only or only in title]
    return found or sys.exit(f"bench: nothing is called {only!r}; there are: {', '.join(titles)}")


@contextlib.contextmanager
def workplace(args):
    """The folder of datasets and a place to mount at; a signal to end unmounts and cleans up, too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with contextlib.ExitStack() as stack:
        work = args.work or pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        work.mkdir(parents=True, exist_ok=True)
        place = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory())) / "mount"
        yield work.resolve(), place


def run(main):
    """A command that fails, or an interrupt, ends the script without a traceback."""
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"bench: {error} {error.stderr or ''}".strip())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def write_json(args, results, **machine):
    if args.json:
        everything = {**machine, "processors": os.cpu_count(), "rounds": args.rounds, "results": results}
        args.json.write_text(json.dumps(everything, indent=1) + "\n")
