"""Archives for tests/kernels/node."""

import hashlib
import random
import shutil
import subprocess
import zlib

from vmlib.kernels import KEPT, Suite

SMALL_FILES = 60
BIG_FILES = 1500
BIG_FILE = 1 << 20
# Increase it to make both trees again.
VERSION = 2


def directory():
    """The directory of the archives, made once."""
    place = KEPT / f"data-{VERSION}"
    if not place.exists():
        making = place.with_suffix(".making")
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        small(making)
        big(making)
        for path in making.iterdir():
            path.chmod(0o644)
        making.rename(place)
    return place


def small(place):
    """A tree of many sizes, as an image, a tar, a compressed tar and a ZIP archive."""
    chance = random.Random(5)
    tree = place / "small"
    for number in range(SMALL_FILES):
        path = tree / f"class {number % 9}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(chance.randbytes(chance.choice([0, 1, 4095, 30_000, 131_072, 300_001])))
    (tree / "link").symlink_to("class 0/0.jpg")
    files = sorted(path for path in tree.rglob("*") if path.is_file())
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(tree)}\n" for path in files]
    (place / "small.sums").write_text("".join(sums))
    subprocess.run(["tar", "-C", tree, "-cf", place / "small.tar", "."], check=True)
    subprocess.run(["gzip", "--keep", place / "small.tar"], check=True)
    subprocess.run(["zip", "-qry", place / "small.zip", "."], cwd=tree, check=True)
    squash(tree, place / "small.sqfs")
    shutil.rmtree(tree)


def big(place):
    """A tree larger than the memory of a job, half of each file compressible: as an image and a tar."""
    chance = random.Random(6)
    tree = place / "big"
    tree.mkdir()
    sums = []
    for number in range(BIG_FILES):
        noise = chance.randbytes(1 << 12)
        content = (noise + bytes(1 << 12)) * (BIG_FILE >> 13)
        (tree / f"{number}.bin").write_bytes(content)
        sums.append(f"{zlib.crc32(content)}  {number}.bin\n")
    (place / "big.sums").write_text("".join(sums))
    subprocess.run(["tar", "-C", tree, "-cf", place / "big.tar", "."], check=True)
    squash(tree, place / "big.sqfs")
    shutil.rmtree(tree)


def squash(tree, image):
    subprocess.run(["mksquashfs", tree, image, "-comp", "zstd", "-no-progress", "-quiet"], check=True,
                   stdout=subprocess.DEVNULL)


def old_helper(machine):
    """The fusermount of FUSE 2, which Debian 11 has in the package fuse."""
    place = KEPT / f"fusermount-{machine}"
    if not place.exists():
        suite = Suite("bullseye", machine)
        suite.prepare()
        unpacked = KEPT / f"fuse-{machine}.making"
        subprocess.run(["dpkg-deb", "--extract", suite.download("fuse"), unpacked], check=True)
        (unpacked / "bin" / "fusermount").rename(place)
        shutil.rmtree(unpacked)
    return place
