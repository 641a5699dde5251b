"""Runs a recipe: a few lines as a sh script, or a job script by Slurm or in the way Slurm would run it."""

import os
import re
import shutil
import subprocess

# The last node of tests/slurm/test-cluster --nodes 3 --apart has no /dev/fuse.
NODE_WITHOUT_FUSE = "node3"

# Time limit in seconds. A recipe takes one or two; a busy machine needs longer.
LIMIT = 120


class Ended:
    def __init__(self, status, said):
        self.status, self.said = status, said


def real_slurm():
    """Only in the cluster of tests/slurm/test-cluster; a login node's real Slurm is not for tests."""
    return "ARCHFS_TEST_PROCTRACK" in os.environ and "SLURM_CONF" in os.environ


def run(world, block, name):
    script = world.top / f"{name.replace(' ', '-').replace(',', '')}.sh"
    script.write_text(block.text, encoding="utf-8")
    if not block.is_job():
        # With -e, because a failing line must not be ignored, as it could be by a user who pastes line by
        # line.
        return start(["sh", "-e", str(script)], world, world.environment())
    tasks = array(block.text)
    if real_slurm():
        # Of an array, one file for each task.
        output = script.with_suffix(".%a.out" if tasks else ".out")
        submit = ["sbatch", "--wait", f"--exclude={NODE_WITHOUT_FUSE}", "--output", str(output), str(script)]
        ended = start(submit, world, world.environment())
        for each in sorted(output.parent.glob(output.name.replace("%a", "*"))):
            ended.said += each.read_text(errors="replace")
        return ended
    environment = job_environment(world, block.text)
    all_ended = [start(as_slurm_would(script, block.text), world, {**environment, **task}) for task in tasks or [{}]]
    return Ended(next((ended.status for ended in all_ended if ended.status != 0), 0), "".join(ended.said for ended in all_ended))


def array(text):
    """The variables of each task of a job array; empty if it is none."""
    numbers = re.search(r"^#SBATCH .*--array=(\d+)-(\d+)", text, re.MULTILINE)
    if not numbers:
        return []
    return [{"SLURM_ARRAY_TASK_ID": str(task)} for task in range(int(numbers[1]), int(numbers[2]) + 1)]


def as_slurm_would(script, text):
    interpreter = re.match(r"#!(\S+)\n", text).group(1)
    if not shutil.which(interpreter):
        interpreter = "sh"
    return ["sh", "-c", 'SLURM_TASK_PID=$$ exec "$@"', "job", interpreter, str(script)]


def job_environment(world, text):
    options = dict(re.findall(r"--(nodes|ntasks-per-node)=(\d+)", text))
    return dict(
        world.environment(), SLURM_JOB_ID=str(os.getpid()), SLURM_JOB_NUM_NODES=options.get("nodes", "1"),
        SLURM_NTASKS_PER_NODE=options.get("ntasks-per-node", "1"))


def start(command, world, environment):
    """Waits for the command, but not for processes it leaves running, which have the output open too."""
    output = world.top / "said"
    with open(output, "wb") as file:
        process = subprocess.Popen(
            command, cwd=world.work, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
            start_new_session=True)
        try:
            status = process.wait(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            status = f"still running after {LIMIT} s"
    return Ended(status, output.read_text(errors="replace"))
