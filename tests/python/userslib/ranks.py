"""torchrun with two ranks: under `archfs run`, and with each rank mounting at the same mount point."""

import os
import subprocess

from userslib.pictures import dataset
from userslib.report import Problem, same
from userslib.stage import LIMIT, USERS

SCRIPT = USERS / "ranks.py"
# torch 1.13 does not find its own defaults for these under Python 3.11. There is no rank 9.
OUTPUT = ["--redirects", "9:1", "--tee", "9:1"]
# Each rank does what a job script does; the second rank shares the mount of the first.
EACH = '"$0" mount --quiet "$1" "$2" && "$3" "$4" "$2"'


def torchrun(stage):
    directory, views = dataset(stage)
    mount_point = stage.work / "ranks"
    launch = [stage.python, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", *OUTPUT]
    local = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    expected = stage.call(*launch, SCRIPT, directory, environment=local)
    # Each launch imports torch three times.
    for view in [view for view in views if view.name == "sqfs" or "gz" in view.name or "shards" in view.name]:
        with stage.report.check(f"torchrun of 2 ranks under archfs run, {view.name}"):
            run = [stage.archfs, "run", "--quiet", *view.options, *view.archives, mount_point, "--"]
            same(expected, stage.call(*run, *launch, SCRIPT, mount_point, environment=local))
            gone(mount_point)
    view = views[0]
    with stage.report.check("torchrun of 2 ranks that mount at one mount point"):
        found = stage.call(*launch, "--no_python", "bash", "-c", EACH, stage.archfs, view.archives[0], mount_point,
                           stage.python, SCRIPT, environment=local)
        same(expected, found)
        gone(mount_point)
    with stage.report.check("the status of torchrun whose rank fails is that of archfs run"):
        run = [stage.archfs, "run", "--quiet", view.archives[0], mount_point, "--"]
        statuses = [status(stage, [*words, *launch, SCRIPT, root, "fail"], local)
                    for words, root in [([], directory), (run, mount_point)]]
        if statuses[0] == 0 or statuses[0] != statuses[1]:
            raise Problem(f"{statuses[0]} on the plain directory, {statuses[1]} under archfs run")
        gone(mount_point)


def status(stage, command, environment):
    return subprocess.run([str(word) for word in command], check=False, capture_output=True, timeout=LIMIT,
                          stdin=subprocess.DEVNULL, env=stage.environment | environment).returncode


def gone(mount_point):
    if os.path.lexists(mount_point):
        raise Problem(f"{mount_point} is still there")
