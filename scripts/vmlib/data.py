"""Archives for tests/kernels/node."""

import hashlib
import random
import shutil
import subprocess
import zlib

from vmlib.kernels import KEPT, Suite
from vmlib.shell import made

SMALL_FILES = 60
# More than the memory of the jobs that read them.
BIG_FILES, BIG_FILES_LONG = 300, 1500
BIG_FILE = 1 << 20
# Increase it to make both trees again.
VERSION = 3


def directory(is_long):
    """The directory of the archives, made once."""
    path = KEPT / f"data-{VERSION}{'-long' if is_long else ''}"
    if not path.exists():
        with made(path) as making:
            small(making)
            big(making, BIG_FILES_LONG if is_long else BIG_FILES)
            for file in making.iterdir():
                file.chmod(0o644)
    return path


def small(target):
    """A tree of many sizes, as an image, a tar, a compressed tar and a ZIP archive."""
    chance = random.Random(5)
    tree = target / "small"
    for number in range(SMALL_FILES):
        path = tree / f"class {number % 9}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(chance.randbytes(chance.choice([0, 1, 4095, 30_000, 131_072, 300_001])))
    (tree / "link").symlink_to("class 0/0.jpg")
    files = sorted(path for path in tree.rglob("*") if path.is_file())
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(tree)}\n" for path in files]
    (target / "small.sums").write_text("".join(sums))
    subprocess.run(["tar", "-C", tree, "-cf", target / "small.tar", "."], check=True)
    subprocess.run(["gzip", "--keep", target / "small.tar"], check=True)
    subprocess.run(["zip", "-qry", target / "small.zip", "."], cwd=tree, check=True)
    squash(tree, target / "small.sqfs")
    shutil.rmtree(tree)


def big(target, count):
    """A tree larger than the memory of a job, half of each file compressible: as an image and a tar."""
    chance = random.Random(6)
    tree = target / "big"
    tree.mkdir()
    sums = []
    for number in range(count):
        noise = chance.randbytes(1 << 12)
        content = (noise + bytes(1 << 12)) * (BIG_FILE >> 13)
        (tree / f"{number}.bin").write_bytes(content)
        sums.append(f"{zlib.crc32(content)}  {number}.bin\n")
    (target / "big.sums").write_text("".join(sums))
    subprocess.run(["tar", "-C", tree, "-cf", target / "big.tar", "."], check=True)
    squash(tree, target / "big.sqfs")
    shutil.rmtree(tree)


def squash(tree, image):
    subprocess.run(["mksquashfs", tree, image, "-comp", "zstd", "-no-progress", "-quiet"], check=True,
                   stdout=subprocess.DEVNULL)


def old_helper(machine):
    """The fusermount of FUSE 2, which Debian 11 has in the package fuse."""
    unpacked = KEPT / f"fuse-{machine}"
    if not unpacked.exists():
        suite = Suite("bullseye", machine)
        suite.prepare()
        with made(unpacked) as making:
            subprocess.run(["dpkg-deb", "--extract", suite.download("fuse"), making], check=True)
    return unpacked / "bin" / "fusermount"
