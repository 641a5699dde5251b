"""The kernel's NFS server in a network namespace of a virtual machine, behind a delay.

Nothing is installed: what mountd would answer is written into the kernel's caches beforehand. Formats: ip_map_parse in
net/sunrpc/svcauth_unix.c, expkey_parse and svc_export_parse in fs/nfsd/export.c.
"""

import os
import pathlib
import subprocess
import time

NAMESPACE = "server"
SERVER, CLIENT = "10.0.0.1", "10.0.0.2"
LEASE = 10
NEVER = 2**31 - 1
# NFSEXP_READONLY, NFSEXP_INSECURE_PORT, NFSEXP_NOSUBTREECHECK, NFSEXP_FSID: include/uapi/linux/nfsd/export.h
FLAGS = 0x1 | 0x2 | 0x400 | 0x2000

START = f"""set -e
mount -t nfsd nfsd /proc/fs/nfsd
mkdir -p /var/lib/nfs/v4recovery
echo 'nfsd {CLIENT} {NEVER} client' > /proc/net/rpc/auth.unix.ip/channel
echo 'client DIRECTORY {NEVER} {FLAGS} 65534 65534 0' > /proc/net/rpc/nfsd.export/channel
echo 'client 1 \\x00000000 {NEVER} DIRECTORY' > /proc/net/rpc/nfsd.fh/channel
echo {LEASE} > /proc/fs/nfsd/nfsv4leasetime
echo {LEASE} > /proc/fs/nfsd/nfsv4gracetime
echo '-3 +4 +4.1 +4.2' > /proc/fs/nfsd/versions
echo 'tcp 2049' > /proc/fs/nfsd/portlist
echo 16 > /proc/fs/nfsd/threads
echo ready
# The server ends when the last mount of nfsd ends, and that is in this mount namespace.
exec sleep infinity
"""


def call(*words):
    subprocess.run([str(word) for word in words], check=True)


def inside(*words):
    """A command that runs on the server."""
    return ["ip", "netns", "exec", NAMESPACE, *words]


def start(directory):
    """Exports a directory, and waits until clients may open files."""
    for module in ["nfsd", "nfsv4", "veth", "sch_netem"]:
        call("modprobe", module)
    call("ip", "netns", "add", NAMESPACE)
    call("ip", "link", "add", "client", "type", "veth", "peer", "name", "server", "netns", NAMESPACE)
    for prefix, name, address in [([], "client", CLIENT), (inside(), "server", SERVER)]:
        call(*prefix, "ip", "address", "add", f"{address}/24", "dev", name)
        call(*prefix, "ip", "link", "set", name, "up")
    call(*inside("ip", "link", "set", "lo", "up"))
    words = inside("sh", "-c", START.replace("DIRECTORY", str(directory)))
    holder = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    if holder.stdout.readline() != "ready\n":
        raise RuntimeError("no NFS server")
    time.sleep(LEASE + 1)


def set_round_trip(seconds):
    """Each side delays what it sends by half of it."""
    for prefix, name in [([], "client"), (inside(), "server")]:
        call(*prefix, "tc", "qdisc", "replace", "dev", name, "root", "netem", "limit", 100_000,
             "delay", f"{seconds * 1e6 / 2:.0f}us")


def mount(mount_point, scale=1, read_ahead_kb=None):
    """Mounts the export with the default options. Times of the attribute cache are multiplied by `scale`. The client
    reads `read_ahead_kb` KiB ahead, or its default.
    """
    times = [f"{name}={seconds * scale:.0f}" for name, seconds in
             [("acregmin", 3), ("acregmax", 60), ("acdirmin", 30), ("acdirmax", 60)]]
    options = ["ro", "vers=4.2", "proto=tcp", f"addr={SERVER}", f"clientaddr={CLIENT}", *times]
    call("mount", "-i", "-t", "nfs4", "-o", ",".join(options), f"{SERVER}:/", mount_point)
    if read_ahead_kb is not None:
        device = os.stat(mount_point).st_dev
        setting = f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb"
        pathlib.Path(setting).write_text(str(read_ahead_kb), encoding="ascii")


def requests():
    """How many requests the server had so far: all compounds, and operations by name."""
    text = subprocess.run(inside("cat", "/proc/net/rpc/nfsd"), check=True, capture_output=True, text=True).stdout
    rows = {line.split()[0]: [float(word) for word in line.split()[1:]] for line in text.splitlines()}
    operations = rows["proc4ops"][1:]
    # Numbers of operations: include/linux/nfs4.h.
    return {"all": int(rows["rpc"][0]), "OPEN": int(operations[18]), "READ": int(operations[25] + operations[68])}
