"""What all sections share: programs, the work folder, users' scripts, and mounts that never stay."""

import contextlib
import dataclasses
import os
import pathlib
import subprocess

from userslib.report import Problem, Report, same

ROOT = pathlib.Path(__file__).resolve().parents[2]
USERS = ROOT / "tests" / "python" / "users"
# Seconds that one script may take, also where many others are at work; one that hangs is ended.
LIMIT = 900


@dataclasses.dataclass(frozen=True)
class View:
    """Archives that are shown as one folder."""

    name: str
    archives: tuple
    options: tuple = ()


class Stage:
    def __init__(self, archfs, python, work, times):
        self.archfs, self.python, self.work, self.times = archfs, python, work, times
        self.report = Report()
        # Nothing around the test chooses for archfs, and no script writes beside itself.
        self.environment = {name: value for name, value in os.environ.items()
                            if not name.startswith(("ARCHFS", "SLURM_", "PYTHON"))}
        self.environment |= {"PYTHONDONTWRITEBYTECODE": "1", "XDG_CACHE_HOME": str(work / "cache")}

    def call(self, *command, **options):
        """What it says on standard output; an error with all that it said unless the status is 0."""
        return subprocess.run([str(word) for word in command], check=True, text=True, capture_output=True,
                              stdin=subprocess.DEVNULL, timeout=LIMIT, cwd=self.work,
                              env=self.environment | options.pop("environment", {}), **options).stdout

    def user(self, script, *arguments, **options):
        python = options.pop("python", self.python)
        return self.call(python, USERS / script, *arguments, **options)

    def pack(self, *words):
        self.call(self.archfs, "pack", "--quiet", *words)

    @contextlib.contextmanager
    def mounted(self, view):
        """A fresh mount, which would go with this process as well."""
        place = self.work / "mount"
        try:
            self.call(self.archfs, "mount", "--quiet", *view.options, *view.archives, place)
            yield place
        finally:
            if os.path.ismount(place):
                self.call(self.archfs, "unmount", "--lazy", place)
        if place.exists():
            raise Problem(f"{place} is still there after unmounting")

    def compare(self, what, plain, views, script, *arguments, **options):
        """The same script on the plain folder and on each view has to say the same."""
        try:
            expected = self.user(script, plain, *arguments, **options)
        except (OSError, subprocess.SubprocessError) as problem:
            with self.report.check(f"{what}, on the plain folder"):
                raise problem
            return
        for view in views:
            with self.report.check(f"{what}, {view.name}"), self.mounted(view) as place:
                same(expected, self.user(script, place, *arguments, **options))
