"""Kernels from Debian's packages, which are downloaded and unpacked, never installed."""

import lzma
import os
import pathlib
import re
import subprocess
import time

from vmlib.shell import CANNOT_RUN, call, fail, made

PROJECT = pathlib.Path(__file__).resolve().parents[2]
KEPT = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", PROJECT / "target")).resolve() / "vm"

# The kernel series of Debian's suites. "newest" is what Debian's developers have.
SUITES = {"5.10": "bullseye", "6.1": "bookworm", "6.12": "trixie", "newest": "sid"}
DAY = 24 * 3600
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"

# Names of machines: as uname(2), and as Debian has them.
DEBIAN_NAMES = {"x86_64": "amd64", "aarch64": "arm64"}


class Suite:
    """A suite of Debian for some machine, with package lists of its own."""

    def __init__(self, name, machine="x86_64"):
        self.name, self.architecture = name, DEBIAN_NAMES[machine]
        self.directory = KEPT / "apt" / f"{name}-{self.architecture}"
        self.packages = KEPT / "packages"

    def options(self):
        at = self.directory
        return ["-o", f"Dir::Etc={at / 'etc'}", "-o", f"Dir::State={at / 'state'}", "-o", f"Dir::Cache={at / 'cache'}",
                "-o", f"Dir::State::status={at / 'status'}", "-o", f"APT::Architecture={self.architecture}",
                "-o", f"APT::Architectures::={self.architecture}", "-o", "APT::Sandbox::User=root"]

    def prepare(self):
        """Gets the package lists, once a day."""
        done = self.directory / "updated"
        if not done.exists() or done.stat().st_mtime < time.time() - DAY:
            for needed in ["etc/apt.conf.d", "etc/preferences.d", "state/lists/partial", "cache/archives/partial"]:
                (self.directory / needed).mkdir(parents=True, exist_ok=True)
            (self.directory / "status").touch()
            source = f"deb [signed-by={KEYRING}] {mirror()} {self.name} main\n"
            (self.directory / "etc" / "sources.list").write_text(source)
            words = ["apt-get", *self.options(), "-qq", "--error-on=any", "update"]
            # Without a network, older lists and packages are used.
            if subprocess.run(words, check=False, capture_output=done.exists()).returncode == 0:
                done.touch()
            elif not done.exists():
                fail(f"no package lists of Debian's suite {self.name}", CANNOT_RUN)

    def needs(self, package):
        """The packages that a package depends on, without choices."""
        shown = call("apt-cache", *self.options(), "depends", package)
        return re.findall(r"^  (?:Pre)?Depends: ([^<\s]+)", shown, re.MULTILINE)

    def download(self, package):
        """The file of a package."""
        self.packages.mkdir(parents=True, exist_ok=True)
        shown = call("apt-cache", *self.options(), "show", "--no-all-versions", package)
        name = pathlib.Path(re.search(r"^Filename: (\S+)", shown, re.MULTILINE).group(1)).name
        # apt-get writes a colon as %3a.
        found = [file for file in self.packages.iterdir() if file.name.replace("%3a", ":").split(":")[-1] == name]
        if found:
            return found[0]
        before = set(self.packages.iterdir())
        call("apt-get", *self.options(), "-qq", "download", package, cwd=self.packages, status=CANNOT_RUN)
        return next(iter(set(self.packages.iterdir()) - before))


def mirror():
    """The mirror of Debian that this machine uses."""
    words = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(ORIGIN) $(COMPONENT) $(RELEASE)"]
    for line in call(*words).splitlines():
        uri, origin, component, release = [*line.split(), "", "", ""][:4]
        if (origin, component) == ("Debian", "main") and "-" not in release:
            return uri
    return fail("apt has no mirror of Debian", CANNOT_RUN)


class Kernel:
    """An unpacked kernel."""

    def __init__(self, directory):
        self.directory = directory
        self.modules = directory / "lib/modules"
        self.version = next(self.modules.iterdir()).name

    def image(self):
        paths = [self.directory / "boot" / f"vmlinuz-{self.version}", self.modules / self.version / "vmlinuz"]
        return next(path for path in paths if path.exists())

    def module_files(self, names):
        """The files of modules and of those that they need, in load order. Modules that are built in have none."""
        needs = {}
        for line in (self.modules / self.version / "modules.dep").read_text().splitlines():
            file, needed = line.split(":")
            needs[file] = needed.split()
        by_name = {pathlib.Path(file).name.split(".")[0].replace("-", "_"): file for file in needs}
        ordered = []
        for name in names:
            file = by_name.get(name.replace("-", "_"))
            for one in [] if file is None else [*reversed(needs[file]), file]:
                if one not in ordered:
                    ordered.append(one)
        return [self.modules / self.version / file for file in ordered]


def unpacked_module(file):
    """The bytes of a module, which busybox cannot decompress."""
    if file.suffix == ".xz":
        return lzma.decompress(file.read_bytes())
    if file.suffix == ".zst":
        return subprocess.run(["zstd", "-dc", file], capture_output=True, check=True).stdout
    return file.read_bytes()


def get(name, machine="x86_64"):
    """The kernel of a series of SUITES, of a package of bookworm, or of a .deb file."""
    if name.endswith(".deb"):
        return unpacked([pathlib.Path(name).resolve()])
    suite = Suite(SUITES.get(name, "bookworm"), machine)
    suite.prepare()
    package = name
    if name in SUITES:
        package = next(found for found in suite.needs(f"linux-image-{suite.architecture}")
                       if re.match(r"linux-image-\d", found))
    # Newer packages have the parts of a kernel in packages of their own.
    parts = [found for found in suite.needs(package) if re.match(r"linux-(binary|modules)-\d", found)]
    return unpacked([suite.download(part) for part in [package, *parts]])


def unpacked(files):
    directory = KEPT / "kernels" / files[0].stem
    if not directory.exists():
        with made(directory) as making:
            for file in files:
                call("dpkg-deb", "--extract", file, making)
            if not (making / "lib/modules").exists():
                # depmod looks below lib.
                (making / "lib").symlink_to("usr/lib")
            version = next((making / "lib/modules").iterdir()).name
            call("/sbin/depmod", "--basedir", making, version)
    return Kernel(directory)
