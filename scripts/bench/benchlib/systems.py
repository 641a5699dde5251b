"""The systems compared: how each shows a dataset on a fresh mount, and its version.

A system takes part if it can show a directory with one file; the others are left out and named. `begin` runs
once per dataset (archives and indexes are created and loaded into the page cache), `shown` once per fresh
mount.
"""

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from typing import NamedTuple

from benchlib import datasets, mounts, reader
from benchlib.programs import call, version

ARCHFS, ARCHFS_TAR = "archfs", "archfs, tar"
DIRECT, DIRECT_TAR = "archfs --direct", "archfs --direct, tar"
PLAIN, TMPFS = "plain directory", "tmpfs"
KERNEL, EROFS = "kernel squashfs", "kernel EROFS"
LOW_LEVEL = "squashfuse_ll"


class Directory(NamedTuple):
    """The files themselves, with names, attributes and pages in the kernel's caches."""
    name: str = PLAIN
    version: str = ""
    form: str = "directory"

    @contextlib.contextmanager
    def begin(self, dataset):
        reader.warm(*(dataset.source / file for file in dataset.files()))
        yield dataset.source

    def shown(self, began, _mount_point):
        return contextlib.nullcontext(began)

    def run(self, _began, _root):
        return []


class Memory(NamedTuple):
    """A copy of them in a separate tmpfs."""
    name: str = TMPFS
    version: str = ""
    form: str = "directory"

    @contextlib.contextmanager
    def begin(self, dataset):
        with tempfile.TemporaryDirectory() as directory:
            mount_point = pathlib.Path(directory) / "tmpfs"
            mount = ["mount", "-t", "tmpfs", "-o", "size=75%", "archfs-bench", mount_point]
            with mounts.mounted(mount_point, mount, ["umount", mount_point]):
                call("cp", "-a", f"{dataset.source}/.", mount_point)
                yield mount_point

    def shown(self, began, _mount_point):
        return contextlib.nullcontext(began)

    def run(self, _began, _root):
        return []


class Mount(NamedTuple):
    """A command that mounts an archive; {archive} and {mount_point} are replaced."""
    name: str
    version: str
    form: str
    command: tuple
    unmount: tuple = ("umount", "{mount_point}")
    index: tuple = ()
    index_path: str = ""
    # The command that starts readers.
    reader: tuple = ()

    @contextlib.contextmanager
    def begin(self, dataset):
        archive = dataset.archive(self.form)
        if self.index and not self.saved_index(archive).exists():
            self.make_index(archive)
        reader.warm_archive(archive)
        yield archive

    def shown(self, archive, mount_point):
        reader.warm(archive)
        return self.mounted(archive, mount_point)

    def mounted(self, archive, mount_point):
        return mounts.mounted(mount_point, self.words(self.command, archive, mount_point),
                              self.words(self.unmount, archive, mount_point))

    def run(self, archive, root):
        return self.words(self.reader, archive, root)

    def saved_index(self, archive):
        return pathlib.Path(self.index_path.format(archive=archive))

    def make_index(self, archive):
        self.saved_index(archive).unlink(missing_ok=True)
        call(*self.words(self.index, archive, None), capture_output=True)
        if not self.saved_index(archive).exists():
            sys.exit(f"bench: {self.name} wrote no {self.saved_index(archive)}")

    def words(self, command, archive, mount_point):
        return [word.format(archive=archive, mount_point=mount_point, index=self.index_path.format(archive=archive))
                for word in command]


def kernel(name, form, kind):
    return Mount(name, f"Linux {os.uname().release}", form,
                 ("mount", "-t", kind, "-o", "loop,ro", "{archive}", "{mount_point}"))


def of_archfs(program, commit, name, form, *options):
    index = {"index": (str(program), "index", "{archive}"),
             "index_path": "{archive}.archfs-index"} if form.startswith("tar") else {}
    return Mount(name, commit, form,
                 (str(program), "mount", "--keep", "--quiet", *options, "{archive}", "{mount_point}"),
                 (str(program), "unmount", "{mount_point}"), **index)


def of_direct(program, commit, name, form):
    """Readers below `archfs run --direct`, which shares the mount. The first of them finds the table of the files
    made, as after the imports of a training script.
    """
    mount = of_archfs(program, commit, name, form)
    run = (str(program), "run", "--direct", "--quiet", "{archive}", "{mount_point}", "--")
    return Prepared(*mount._replace(reader=run))


class Prepared(Mount):
    """A mount on which a first command is run before anything is measured."""

    @contextlib.contextmanager
    def mounted(self, archive, mount_point):
        with super().mounted(archive, mount_point) as root:
            call(*self.run(archive, root), "sleep", "1")
            yield root


def of_squashfuse(program, name):
    found = version(program, "--help")
    return Mount(f"{name} {found}", found, "squashfs", (program, "{archive}", "{mount_point}"))


def of_ratarmount(program, form="tar"):
    return Mount("ratarmount", version(program, "--version"), form,
                 (str(program), "--index-file", "{index}", "{archive}", "{mount_point}"),
                 index=(str(program), "-c", "--no-mount", "--index-file", "{index}", "{archive}"),
                 index_path="{archive}.ratarmount-index")


def everything(work, archfs, commit, chosen, without):
    """The systems that are wanted and present, the reference first and archfs last."""
    offered = [Directory(), Memory(), kernel(KERNEL, "squashfs", "squashfs"), kernel(EROFS, "erofs", "erofs")]
    newer = work / "newer-squashfuse"
    for name in ["squashfuse", LOW_LEVEL]:
        programs = [shutil.which(name), str(newer / name) if (newer / "version").exists() else None]
        offered += [of_squashfuse(program, name) for program in programs if program]
        if not any(programs):
            print(f"left out: {name} (not installed)")
    if not (newer / "version").exists():
        print(f"left out: a newer squashfuse (none in {newer}; see scripts/bench/newer-squashfuse)")
    ratarmount = installed_ratarmount(work) if wanted("ratarmount", chosen, without) else None
    if ratarmount:
        offered.append(of_ratarmount(ratarmount))
    offered += [of_archfs(archfs, commit, ARCHFS_TAR, "tar"), of_direct(archfs, commit, DIRECT_TAR, "tar"),
                of_direct(archfs, commit, DIRECT, "squashfs"), of_archfs(archfs, commit, ARCHFS, "squashfs")]
    return [system for system in offered if wanted(system.name, chosen, without) and present(system)]


def wanted(name, chosen, without):
    return (not chosen or is_one_of(name, chosen)) and not is_one_of(name, without)


def is_one_of(name, these):
    """`squashfuse_ll` means all its versions, `squashfuse_ll 0.5.2` one of them."""
    return any(name == one or re.fullmatch(re.escape(one) + r" [\d.]+", name) for one in these)


def present(system):
    with tempfile.TemporaryDirectory() as directory:
        source = pathlib.Path(directory) / "tree"
        source.mkdir()
        (source / "file").write_text("text")
        probe = datasets.of_directory("probe", source, pathlib.Path(directory))
        try:
            with contextlib.redirect_stdout(None), system.begin(probe) as began, \
                    system.shown(began, pathlib.Path(directory) / "mount") as root:
                (root / "file").read_text()
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", None) or ""
            print(f"left out: {system.name} ({error} {said.strip()})")
            return False
    return True


def installed_ratarmount(work):
    """The path of ratarmount, or None if it is not available. Creates a virtual environment for it in `work`."""
    found = shutil.which("ratarmount")
    if found:
        return pathlib.Path(found)
    environment = work / "ratarmount"
    program = environment / "bin" / "ratarmount"
    try:
        if not program.exists():
            print("installing ratarmount", flush=True)
            call(sys.executable, "-m", "venv", "--clear", environment, capture_output=True)
            call(environment / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", "ratarmount",
                 capture_output=True)
        call(program, "--version", capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        why = (getattr(error, "stderr", b"") or b"").decode(errors="replace").strip()
        print(f"left out: ratarmount ({error} {why})")
        return None
    return program
