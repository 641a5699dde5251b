"""Frameworks that start processes of their own, and conda-pack, as docs/how-to describes them."""

import os

from userslib.pictures import dataset
from userslib.report import Problem, same
from userslib.ranks import gone
from userslib.stage import USERS

# One network interface, and no threads beside those of the loader.
LOCAL = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def lightning(stage):
    script = USERS / "lightning_epochs.py"
    run_in_mounts(stage, "PyTorch Lightning, two processes", [stage.python, script, "{}"])


def accelerate(stage):
    words = [USERS / "accelerate_epochs.py", "{}", stage.work / "accelerate-cache"]
    launch = [stage.python, "-m", "accelerate.commands.launch", "--cpu"]
    run_in_mounts(stage, "accelerate launch and datasets", [*launch, *words])
    torchrun = [stage.python, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    run_in_mounts(stage, "accelerate and datasets, two processes of torchrun", [*torchrun, *words])


def run_in_mounts(stage, what, command):
    """Compares a command on the plain directory with `archfs run ARCHIVE -- COMMAND` for some archives."""
    directory, views = dataset(stage)
    local = {**LOCAL, "HF_HOME": str(stage.work / "hugging-face")}
    expected = stage.call(*[directory if word == "{}" else word for word in command], environment=local)
    for view in [view for view in views if view.name in ("sqfs", "tar of tars")]:
        with stage.report.check(f"{what}, {view.name}"):
            run = [stage.archfs, "run", "--quiet", *view.options, *view.archives, "--"]
            same(expected, stage.call(*run, *command, environment=local))


def conda_pack(stage):
    """An archive of conda-pack is run from its mount, at the directory that it was made for."""
    environment, packed, mount_point = stage.work / "conda", stage.work / "conda.tar", stage.work / "conda-mount"
    stage.user("make_conda_environment.py", environment)
    words = ["--prefix", environment, "--dest-prefix", mount_point, "--output", packed, "--quiet"]
    stage.call(stage.python.parent / "conda-pack", *words)
    with stage.report.check("an environment of conda-pack, run from its mount"):
        run = [stage.archfs, "run", "--quiet", packed, mount_point, "--"]
        for program in [mount_point / "bin" / "tool"], [mount_point / "bin" / "python", "-c", "import sys; print(sys.prefix)"]:
            found = stage.call(*run, *program)
            if found != f"{mount_point}\n":
                raise Problem(f"{os.path.basename(program[0])} has the prefix {found}")
        gone(mount_point)
