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
    folder, views = dataset(stage)
    place = stage.work / "ranks"
    launch = [stage.python, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", *OUTPUT]
    local = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    expected = stage.call(*launch, SCRIPT, folder, environment=local)
    # Each launch imports torch three times.
    for view in [view for view in views if view.name == "sqfs" or "gz" in view.name or "shards" in view.name]:
        with stage.report.check(f"torchrun of 2 ranks under archfs run, {view.name}"):
            run = [stage.archfs, "run", "--quiet", *view.options, *view.archives, place, "--"]
            same(expected, stage.call(*run, *launch, SCRIPT, place, environment=local))
            gone(place)
    view = views[0]
    with stage.report.check("torchrun of 2 ranks that mount at one place"):
        found = stage.call(*launch, "--no_python", "bash", "-c", EACH, stage.archfs, view.archives[0], place,
                           stage.python, SCRIPT, environment=local)
        same(expected, found)
        gone(place)
    with stage.report.check("the status of torchrun whose rank fails is that of archfs run"):
        run = [stage.archfs, "run", "--quiet", view.archives[0], place, "--"]
        statuses = [status(stage, [*words, *launch, SCRIPT, root, "fail"], local)
                    for words, root in [([], folder), (run, place)]]
        if statuses[0] == 0 or statuses[0] != statuses[1]:
            raise Problem(f"{statuses[0]} on the plain folder, {statuses[1]} under archfs run")
        gone(place)


def status(stage, command, environment):
    return subprocess.run([str(word) for word in command], check=False, capture_output=True, timeout=LIMIT,
                          stdin=subprocess.DEVNULL, env=stage.environment | environment).returncode


def gone(place):
    if os.path.lexists(place):
        raise Problem(f"{place} is still there")
