"""The process with torch that reads, as its client sees it. It always ends, with all its workers."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys

from benchlib.programs import ROOT

LIMIT = 600


def run(python, module, *words):
    """Runs a module of this package with the Python that has torch."""
    subprocess.run([str(python), "-m", f"benchlib.loaders.{module}", *map(str, words)], check=True,
                   env=environment())


def environment():
    # Suppresses torch's warning about more workers than CPU cores.
    return os.environ | {"PYTHONPATH": str(ROOT / "scripts" / "bench"), "PYTHONWARNINGS": "ignore"}


@contextlib.contextmanager
def started(python):
    process = subprocess.Popen([str(python), "-m", "benchlib.loaders.epoch"], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True, env=environment(), start_new_session=True)
    try:
        told(process)
        yield lambda **request: asked(process, request)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def asked(process, request):
    print(json.dumps(request), file=process.stdin, flush=True)
    return told(process)


def told(process):
    """Reads one line. Raises if the reader hangs, fails or exits."""
    if not select.select([process.stdout], [], [], LIMIT)[0]:
        sys.exit(f"bench-loaders: the reader did not answer for {LIMIT} seconds")
    line = process.stdout.readline()
    if not line or json.loads(line) == "failed":
        sys.exit("bench-loaders: the reader failed; what it said is above")
    return json.loads(line)
