"""examples/slow-http: an HTTP server whose requests take longer, for archives that are far away."""

import contextlib
import socket
import subprocess
import sys

from benchlib import programs


def build():
    """The program. programs.build() must have built the others."""
    programs.call("cargo", "build", "--quiet", "--release", "--locked", "--example", "slow-http", cwd=programs.ROOT)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def served(program, directory, port, milliseconds, megabytes_per_second=None):
    """Serves a directory. Yields a dictionary of counters, which is filled when the server ends."""
    counters = {}
    rate = [] if megabytes_per_second is None else [str(megabytes_per_second)]
    words = [program, directory, str(port), str(milliseconds), *rate]
    server = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        if server.stdout.readline() != "listening\n":
            sys.exit(f"bench: {program} does not listen on port {port}")
        yield counters
    finally:
        counters.update(zip(["reads", "bytes"], map(float, server.communicate()[0].split())))
