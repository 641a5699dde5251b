"""The parts of scripts/test in their order, with the commands of the short and the long form.

The short form of a part is the smallest one that fails when its subject breaks. The long form has what only time
finds: rare orders of events, rare inputs, other kernels, other packages.
"""

import os
import pathlib
import platform
import re

from testlib.schedule import Lane, Part

ROOT = pathlib.Path(__file__).resolve().parents[2]
VERSION = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]
# What scripts/release makes, without libraries.
STATIC = ROOT / "dist" / f"archfs-{VERSION}-{platform.machine()}-linux"

GATE = ("scripts/bench/run", "--quick", "--gate", "--rounds", "3", "--only", "J", "--only", "S, zstd", "--phase", "fresh mount",
        "--with", "kernel squashfs", "--with", "squashfuse_ll", "--with", "archfs")


def has_oracle():
    """Whether the differential tests against libsquashfs can be built."""
    return os.path.exists("/usr/include/sqfs/super.h")


def features(*more):
    """With the same features of the dependencies, fewer of them are compiled again."""
    chosen = [*(["oracle"] if has_oracle() else []), *more]
    return ("--features", ",".join(chosen)) if chosen else ()


def with_program(*command):
    """Runs a script with the static program."""
    return ("env", f"ARCHFS={STATIC}", *command)


def programs_only(is_quick, names):
    """The test programs, without the other parts."""
    words = ("scripts/test-programs", *(["--quick"] if is_quick else features()), *names)
    return Part("test programs", words, words, lane=Lane.ALONE)


PROGRAMS = ("scripts/test-programs", *features())
# Fewer of what is random or repeated.
FEWER = ("env", "ARCHFS_MUTANTS=1500", "ARCHFS_KILL_ROUNDS=120", "ARCHFS_MODEL_ITERATIONS=2000")
MORE = ("env", "ARCHFS_MUTANTS=20000", "ARCHFS_KILL_ROUNDS=1500", "ARCHFS_MODEL_ITERATIONS=20000",
        "ARCHFS_FUZZ_MUTANTS=100000", "ARCHFS_LONG_TESTS=1")
MODELS = ("CARGO_PROFILE_DEV_OPT_LEVEL=0", "cargo", "test", "--locked", "--lib", *features("model"), "model::")
NO_SLURM = "no Slurm can be started here, so no real jobs are tested"
NO_MOUNTS = "nothing can be mounted here"
NO_PACKAGES = "packages of PyPI cannot be had here, so no users' code is run"

PARTS = [
    # Downloads, which take time and no CPU. The parts that need them try again, and report what they lack.
    Part("download: root", ("scripts/test-bare", "--prepare"), lane=Lane.DOWNLOAD, lack="no bare root can be made here"),
    Part("download: torch", ("scripts/test-python", "--short", "--prepare"), ("scripts/test-python", "--prepare"),
         lane=Lane.DOWNLOAD, lack=NO_PACKAGES),
    Part("download: servers", ("tests/remote/test-servers", "--prepare"), lane=Lane.DOWNLOAD, lack=NO_PACKAGES),
    Part("download: package", ("scripts/test-package", "--prepare"), ("scripts/test-package", "--prepare", "--jupyter"),
         lane=Lane.DOWNLOAD, lack=NO_PACKAGES),

    # The short form's program is made of the packages that the test programs need in any case.
    Part("build: program", ("scripts/release", "--binary", "--for-tests"), ("scripts/release", "--binary"),
         lane=Lane.BACK),
    Part("build: wheel", ("scripts/release", "--wheel", "--for-tests"), ("scripts/release", "--wheel"),
         lane=Lane.BACK, needs=("build: program",)),
    # After the wheel, because both write target/debug/archfs.
    Part("build: test programs", (*PROGRAMS, "--build"), lane=Lane.BACK),
    Part("check", ("scripts/check", "--without-tests"), lane=Lane.BACK),
    # The cache and the workers under the locks of a model checker, in all or many orders of threads. They have no inner
    # loops that would be worth the time to optimize them.
    Part("models", (*FEWER, *MODELS), (*MORE, *MODELS), lane=Lane.BACK),
    Part("fuzzing", (), ("scripts/fuzz", "--seconds", "120"), lane=Lane.BACK),
    # The library of direct reads, without archfs and FUSE.
    Part("direct reads", ("tests/direct/test-library",), lane=Lane.BACK,
         lack="there is no C compiler, or nothing can be mounted"),
    # The recipes of the documents as they stand, in a Slurm of their own as well.
    Part("recipes", with_program("scripts/test-recipes", "--slurm"), lane=Lane.BACK, needs=("build: program",), lack=NO_MOUNTS),
    # The package as pip installs it. Its tests interrupt programs at chosen times.
    Part("Python package", ("scripts/test-package", "--wheel"), ("scripts/test-package", "--jupyter"), lane=Lane.BACK,
         needs=("build: wheel",), lack=NO_PACKAGES),
    # Users' unmodified code.
    Part("Python", with_program("scripts/test-python", "--plain"), lane=Lane.BACK, needs=("build: program",), lack=NO_MOUNTS),
    Part("users' code", with_program("scripts/test-python", "--short"), with_program("ARCHFS_LONG_TESTS=1", "scripts/test-python"),
         lane=Lane.BACK, needs=("build: program",), lack=NO_PACKAGES),
    Part("shards", (), with_program("scripts/test-webdataset"), lane=Lane.BACK, needs=("build: program",), lack=NO_PACKAGES),
    # The static program where nothing is installed.
    Part("bare root", with_program("scripts/test-bare"), lane=Lane.BACK, needs=("build: program",),
         lack="no bare root can be made here"),
    # Archives at URLs of real servers.
    Part("servers", with_program("tests/remote/test-servers"), lane=Lane.BACK, needs=("build: program",), lack=NO_PACKAGES),
    # Everything for some time, by many processes.
    Part("soak", with_program("scripts/soak", "--archfs", STATIC, "--minutes", "0.5"),
         with_program("scripts/soak", "--archfs", STATIC, "--minutes", "30"), lane=Lane.BACK,
         needs=("build: program",), lack=NO_MOUNTS),
    Part("soak of jobs", with_program("scripts/soak-jobs", "--archfs", STATIC, "--minutes", "0.5"),
         with_program("scripts/soak-jobs", "--archfs", STATIC, "--minutes", "30"), lane=Lane.BACK,
         needs=("build: program",), lack=NO_MOUNTS),

    # Not in the short form: where the machine is emulated and short of CPU time, the kernel in it fails by chance.
    Part("kernels", (), ("scripts/vm", "--matrix", "--long", STATIC), needs=("build: program",), lack="no virtual machine can be started here"),
    # Real jobs in a real Slurm, which mostly wait.
    Part("Slurm: jobs", with_program("tests/slurm/test-jobs", "cgroup"), with_program("tests/slurm/test-jobs"),
         needs=("build: program",), lack=NO_SLURM),
    Part("Slurm: several nodes", with_program("tests/slurm/test-all-nodes", "cgroup"), with_program("tests/slurm/test-all-nodes"),
         needs=("build: program",), lack=NO_SLURM),
    Part("Slurm: plugin", with_program("tests/slurm/test-spank", "cgroup"), with_program("tests/slurm/test-spank", "--long"),
         needs=("build: program",), lack=NO_SLURM),
    Part("test programs", (*FEWER, *PROGRAMS, "--built", "--beside", "--direct", "reading::many"),
         (*MORE, *PROGRAMS, "--built", "--beside", "--direct", "reading"), needs=("build: test programs",)),
    Part("recipes, direct reads", (), with_program("scripts/test-recipes", "--direct"), needs=("build: program",),
         lack=NO_MOUNTS),

    # What depends on the memory or the page cache of the whole machine, and what measures speed.
    Part("test programs, alone", (*FEWER, *PROGRAMS, "--built", "--alone"), (*MORE, *PROGRAMS, "--built", "--alone"), lane=Lane.ALONE,
         needs=("build: test programs",)),
    Part("speed", with_program(*GATE), lane=Lane.ALONE, needs=("build: program",),
         lack="the kernel's SquashFS or squashfuse_ll cannot be mounted here, so no speed is compared"),
]


def with_needs(names):
    """The named parts, and what they need, in order."""
    wanted = set(names)
    for part in reversed(PARTS):
        if part.name in wanted:
            wanted.update(part.needs)
    return [part for part in PARTS if part.name in wanted]


def show():
    for part in PARTS:
        print(f"{part.lane.value:6} {part.name}\n       short: {' '.join(map(str, part.short)) or '-'}")
        if part.long and part.long != part.short:
            print(f"       long:  {' '.join(map(str, part.long))}")
