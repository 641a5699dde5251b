"""The directory in which recipes run, with small but real versions of the files they name.

All images are PNGs, whatever their names say; no program decodes them. The three sets of images differ, so
that reading the wrong archive is detected.
"""

import importlib.machinery
import importlib.util
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tarfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
CLASSES = ["n01440764", "n01443537", "n01484850", "n01491361"]
PICTURES = 25
# Stands in for torch in a real environment: a package that exists only there.
PACKAGE = "epochs"
WHEEL = f"{PACKAGE}-1.0-py3-none-any.whl"


def picture_maker():
    """Loads tests/python/make-pictures, whose name has no suffix, as a module."""
    loader = importlib.machinery.SourceFileLoader("make_pictures", str(HERE.parent / "make-pictures"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("make_pictures", loader))
    loader.exec_module(module)
    return module.png


class Node:
    """What a machine has mounted: this one, or a node of tests/slurm/test-cluster --apart, seen from its slurmd."""

    def __init__(self, name, proc, enter):
        self.name, self.proc, self.enter = name, pathlib.Path(proc), enter

    def path(self, path):
        """The path on that node, as this process can open it."""
        return f"{self.proc}/root{path}"


def all_nodes():
    nodes = [Node("this machine", "/proc/self", [])]
    cluster = os.environ.get("ARCHFS_TEST_DIRECTORY")
    for file in sorted(pathlib.Path(cluster).parent.glob("slurmd-*.pid")) if cluster else []:
        pid = file.read_text(encoding="ascii").strip()
        nodes.append(Node(file.stem[len("slurmd-"):], f"/proc/{pid}", ["nsenter", "--mount", f"--target={pid}"]))
    return nodes


class World:
    """The work directory; `bin` is first in PATH, and train.py writes to `records`."""

    def __init__(self, top, archfs):
        self.top, self.bin, self.records = top, top / "bin", top / "records"
        self.work = top / "work"
        self.temporary = top / "tmp"
        for each in (self.bin, self.records, self.work, self.temporary):
            each.mkdir()
        shutil.copy2(archfs, self.bin / "archfs")
        self.stand_ins = []
        # The variable ARCHFS_DIRECT for all recipes.
        self.direct = ""
        self.nodes = all_nodes()
        # Mount points seen so far, and what existed there before.
        self.mounted, parents = set(), ("/", "/dev/shm", "/tmp")
        self.there = {os.path.join(parent, name) for parent in parents for name in os.listdir(parent)}
        if not shutil.which("python"):
            (self.bin / "python").symlink_to(sys.executable)
        shutil.copy(HERE / "train.py", self.work / "train.py")
        png = picture_maker()
        for seed, name in enumerate(["data", "imagenet", "train"]):
            pictures(self.work / name, png, seed)
        pack_tar(self.work / "data", self.work / "data.tar")
        tar_of_tars(self.work / "train", self.work / "ILSVRC2012_img_train.tar")
        with tarfile.open(self.work / "ILSVRC2012_img_train.tar") as tar:
            tar.extractall(self.work / "train-tars")
        # Recipes must not read these by mistake. Their digests are known already.
        for name in ["data", "train"]:
            (self.work / name).rename(top / name)
        wheel(self.work / WHEEL)
        (self.work / "requirements.txt").write_text(f"./{WHEEL}\n", encoding="ascii")
        self.container()

    def read_directly(self):
        """Adds --direct to each `archfs run`. The program's name still starts with archfs, for `remains`."""
        program = self.bin / "archfs-program"
        (self.bin / "archfs").rename(program)
        script = (
            f'#!/bin/sh\n[ "$1" = run ] || exec {program} "$@"\nshift\n'
            f'[ "$1" = --overlay ] && exec {program} run "$@"\nexec {program} run --direct "$@"\n')
        (self.bin / "archfs").write_text(script)
        (self.bin / "archfs").chmod(0o755)
        self.direct = "check"

    def stand_in(self, program, why):
        shutil.copy(HERE / program, self.bin / program)
        self.stand_ins.append(f"{program} ({why})")

    def container(self):
        """A real Apptainer needs an image with Python 3 in it, which the caller provides."""
        image = os.environ.get("RECIPES_IMAGE")
        if image and shutil.which("apptainer"):
            (self.work / "train.sif").symlink_to(pathlib.Path(image).resolve())
        else:
            self.stand_in("apptainer", "a real one is used with RECIPES_IMAGE, an image with Python")
            (self.work / "train.sif").mkdir()

    def environment(self):
        path = os.pathsep.join([str(self.bin), os.environ.get("PATH", os.defpath)])
        return dict(
            os.environ, PATH=path, RECIPES_RECORD=str(self.records), TMPDIR=str(self.temporary),
            USER=os.environ.get("USER", str(os.getuid())), PIP_NO_INDEX="1",
            PIP_DISABLE_PIP_VERSION_CHECK="1", ARCHFS_DIRECT=self.direct)

    def directory(self, name):
        """The plain directory of a set of images."""
        return self.work / name if name == "imagenet" else self.top / name

    def make_environment(self):
        """Creates what the environment recipe creates, without pip."""
        env = self.work / "env"
        shutil.rmtree(env, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", env], check=True)
        packages, = env.glob("lib/python*/site-packages")
        with zipfile.ZipFile(self.work / WHEEL) as file:
            file.extractall(packages)
        subprocess.run(
            [self.bin / "archfs", "pack", "--quiet", "--force", env, self.work / "env.sqfs"], check=True)


def pictures(directory, png, seed):
    rng = random.Random(seed)
    for number, name in enumerate(CLASSES):
        (directory / name).mkdir(parents=True)
        for picture in range(PICTURES):
            (directory / name / f"{name}_{10026 + picture}.JPEG").write_bytes(png(rng, number))


def pack_tar(directory, archive):
    with tarfile.open(archive, "w") as tar:
        for path in sorted(directory.iterdir()):
            tar.add(path, path.name)


def tar_of_tars(directory, archive):
    """A tar of one tar per class, whose members have no directory, like ImageNet's training set."""
    with tarfile.open(archive, "w") as outer:
        for path in sorted(directory.iterdir()):
            inner = directory.parent / f"{path.name}.tar"
            pack_tar(path, inner)
            outer.add(inner, inner.name)
            inner.unlink()


def wheel(path):
    files = {
        f"{PACKAGE}.py": "COUNT = 90\n",
        f"{PACKAGE}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0\n",
        f"{PACKAGE}-1.0.dist-info/WHEEL":
            "Wheel-Version: 1.0\nGenerator: recipes\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = f"{PACKAGE}-1.0.dist-info/RECORD"
    files[record] = "".join(f"{name},,\n" for name in [*files, record])
    with zipfile.ZipFile(path, "w") as file:
        for name, text in files.items():
            file.writestr(name, text)
