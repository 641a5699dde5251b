"""What all sections share: programs, the work directory, users' scripts, and mounts that are always
unmounted.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess

from userslib.report import Problem, Report, same

ROOT = pathlib.Path(__file__).resolve().parents[3]
USERS = ROOT / "tests" / "python" / "users"
# Time limit of one script in seconds, generous enough for a busy machine.
LIMIT = 900


@dataclasses.dataclass(frozen=True)
class View:
    """Archives that are shown as one directory."""

    name: str
    archives: tuple
    options: tuple = ()


class Stage:
    def __init__(self, archfs, python, work, times):
        self.archfs, self.python, self.work, self.times = archfs, python, work, times
        self.report = Report()
        # Views on which scripts also run with `run --direct`, and how often those read directly.
        self.direct_views, self.direct_reads = {"tar"}, 0
        # The caller's environment must not affect archfs, and scripts must not write bytecode.
        self.environment = {name: value for name, value in os.environ.items()
                            if not name.startswith(("ARCHFS", "SLURM_", "PYTHON"))}
        self.environment |= {"PYTHONDONTWRITEBYTECODE": "1", "XDG_CACHE_HOME": str(work / "cache")}

    def call(self, *command, **options):
        """The command's standard output. Raises with all output unless the exit status is 0."""
        return subprocess.run([str(word) for word in command], check=True, text=True, capture_output=True,
                              stdin=subprocess.DEVNULL, timeout=LIMIT, cwd=self.work,
                              env=self.environment | options.pop("environment", {}), **options).stdout

    def user(self, script, *arguments, **options):
        python, under = options.pop("python", self.python), options.pop("under", [])
        return self.call(*under, python, USERS / script, *arguments, **options)

    def pack(self, *words):
        self.call(self.archfs, "pack", "--quiet", *words)

    @contextlib.contextmanager
    def mounted(self, view):
        """A fresh mount, which would also end with this process."""
        mount_point = self.work / "mount"
        try:
            self.call(self.archfs, "mount", "--quiet", *view.options, *view.archives, mount_point)
            yield mount_point
        finally:
            if os.path.ismount(mount_point):
                self.call(self.archfs, "unmount", "--lazy", mount_point)
        if mount_point.exists():
            raise Problem(f"{mount_point} is still there after unmounting")

    def compare(self, what, plain, views, script, *arguments, **options):
        """Runs the script on the plain directory and on each view, and compares the output."""
        try:
            expected = self.user(script, plain, *arguments, **options)
        except (OSError, subprocess.SubprocessError) as problem:
            with self.report.check(f"{what}, on the plain directory"):
                raise problem
            return
        for view in views:
            with self.report.check(f"{what}, {view.name}"), self.mounted(view) as mount_point:
                same(expected, self.user(script, mount_point, *arguments, **options))
            if view.name in self.direct_views:
                with self.report.check(f"{what}, {view.name}, direct reads"), self.mounted(view) as mount_point, \
                        self.direct(view, mount_point) as under:
                    same(expected, self.user(script, mount_point, *arguments, **options, under=under))

    @contextlib.contextmanager
    def direct(self, view, mount_point):
        """The command below which a script reads directly and compares each read with the mount."""
        under = ["env", "ARCHFS_DIRECT=check", self.archfs, "run", "--direct", "--quiet", *view.options,
                 *view.archives, mount_point, "--"]
        # The first command finds the table of the files made.
        self.call(*under, "sleep", "0.3")
        yield under
        self.direct_reads += json.loads(self.call(self.archfs, "stats", "--json", mount_point))["direct_reads"]
