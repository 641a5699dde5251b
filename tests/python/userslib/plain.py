"""Sections without packages: the standard library on every kind of archive, and Python run from a mount."""

import functools
import shutil
import subprocess
import sys

from userslib import archives
from userslib.report import Problem, same
from userslib.stage import USERS, View


@functools.cache
def dataset(stage):
    directory = stage.work / "plain"
    stage.call(sys.executable, USERS / "make_plain.py", directory)
    return directory


def standard_library(stage):
    directory = dataset(stage)
    scratch = stage.work / "scratch"
    scratch.mkdir()
    views = archives.views_of(stage, directory)
    views.append(of_mksquashfs(stage, directory))
    views.append(of_parts(stage, directory))
    stage.compare("standard library", directory, views, "plain.py", scratch, python=sys.executable)
    write_ahead_log(stage, views[0])


def beside_the_data(stage):
    """Code that writes beside its data: in a directory, and in a layer over each kind of archive (`run --overlay`)."""
    directory, layer = stage.work / "beside", stage.work / "layer"
    stage.call("cp", "-a", dataset(stage), directory)
    views = archives.views_of(stage, directory)
    expected = stage.user("writes_beside.py", directory, python=sys.executable)
    for view in views:
        for where, overlay in [("in memory", "tmp"), ("in a directory", layer)]:
            with stage.report.check(f"code that writes beside its data, {view.name}, {where}"):
                under = [stage.archfs, "run", "--quiet", "--overlay", overlay, *view.options, *view.archives, "--"]
                same(expected, stage.user("writes_beside.py", "{}", python=sys.executable, under=under))
        shutil.rmtree(layer)


def of_mksquashfs(stage, directory):
    target = directory.with_name("mksquashfs.sqfs")
    stage.call("mksquashfs", directory, target, "-no-progress", "-quiet")
    return View("sqfs of mksquashfs", (target,))


def of_parts(stage, directory):
    """Packs the top-level directories separately: two images and a tar, shown as one again."""
    parts = []
    for name, end in [("samples", "sqfs"), ("site", "tar"), ("files", "sqfs")]:
        one = directory.with_name(f"part-{name}.{end}")
        stage.call("tar", "-cf", one.with_suffix(".all.tar"), "-C", directory, name)
        stage.pack(one.with_suffix(".all.tar"), one)
        parts.append(one)
    return View("three archives as one", tuple(parts))


def write_ahead_log(stage, view):
    """SQLite on a read-only file system: a database in WAL mode needs immutable=1."""
    with stage.report.check("sqlite3 says that a WAL base needs immutable=1"), stage.mounted(view) as mount_point:
        said = subprocess.run([sys.executable, USERS / "plain.py", mount_point, stage.work, "sqlite3, WAL"],
                              check=False, capture_output=True, text=True, timeout=60)
        if "unable to open database file" not in said.stdout:
            raise Problem(said.stdout + said.stderr)


def environment_of_its_own(stage):
    """A virtual environment as one file, with its python as a link and as a copy."""
    for what, flag in [("link", "--symlinks"), ("copy", "--copies")]:
        directory = stage.work / f"environment-{what}"
        stage.call(sys.executable, "-m", "venv", "--without-pip", flag, directory)
        library = next(directory.glob("lib/python*/site-packages"))
        stage.call("cp", "-r", dataset(stage) / "site" / "greeting", library)
        view = archives.image(stage, directory)
        with stage.report.check(f"an environment whose python is a {what}"), stage.mounted(view) as mount_point:
            said = [stage.call(root / "bin" / "python", USERS / "where.py", "greeting")
                    for root in [directory, mount_point]]
            same(said[0], said[1])
