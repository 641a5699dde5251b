"""A virtual machine in QEMU that runs one command."""

import os
import pathlib
import shlex
import shutil
import subprocess
import tempfile

from vmlib.kernels import KEPT, unpacked_module
from vmlib.shell import CANNOT_RUN, call, fail

# Modules needed to reach the files of the root. All others are loaded from there.
FIRST = ["virtio_pci", "virtio_mmio", "9pnet_virtio", "9p", "overlay"]
LATER = ["virtio_blk", "virtio_net", "ext4", "fuse", "loop", "squashfs"]

INIT = """#!/bin/sh
export PATH=/bin
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev
for module in {modules}; do insmod /modules/$module || echo "vm: no module $module" > /dev/{console}; done
mkdir -p /below /over /new
mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=262144,cache=loose root /below
mount -t tmpfs -o size=90% over /over; mkdir /over/upper /over/work
mount -t overlay -o lowerdir=/below,upperdir=/over/upper,workdir=/over/work over /new
for kind in proc sysfs devtmpfs; do
    case $kind in sysfs) target=sys;; devtmpfs) target=dev;; *) target=$kind;; esac
    mkdir -p /new/$target
    mount -t $kind $kind /new/$target
done
for name in fd fd/0=stdin fd/1=stdout fd/2=stderr; do ln -s /proc/self/${{name%=*}} /new/dev/${{name#*=}}; done
mkdir -p /new/dev/shm /new/dev/pts /new/scratch /new/tmp /new/run /new/lib/modules/{version}
for target in dev/shm tmp run; do mount -t tmpfs -o mode=1777 tmpfs /new/$target; done
mount -t devpts devpts /new/dev/pts
mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=262144,cache=loose modules /new/lib/modules/{version}
mount -t cgroup2 cgroup2 /new/sys/fs/cgroup
echo +memory > /new/sys/fs/cgroup/cgroup.subtree_control
for module in {later}; do chroot /new /sbin/modprobe -q $module; done
[ -b /dev/vda ] && mount -t ext4 /dev/vda /new/scratch
{share}
ip link set lo up
# Without an address that is not the loopback's, getaddrinfo() says that there is no network (TEST-NET-1, RFC 5737).
ip address add 192.0.2.1/32 dev lo
hostname archfs-vm; echo 127.0.0.1 archfs-vm >> /new/etc/hosts
# Files that mark a container.
rm -f /new/.dockerenv /new/run/.containerenv
for directory in proc sys dev; do umount -l /$directory; done
exec switch_root /new /bin/bash -c {last}
"""

# The first process of the new root. User namespaces cannot be created below chroot(2). The pipe is there because what
# COMMAND writes to is no terminal.
LAST = """export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
{{ /bin/bash -c {command} < /dev/null; status=$?; sync; echo "{marker} $status"; }} 2>&1 | cat > /dev/{console}
sleep infinity
"""

# Ends the line with the exit status, which the console shows after the output of the command.
MARKER = "vm-exit-status"
PROGRAMS = ["sh", "mount", "umount", "mkdir", "rm", "ln", "insmod", "echo", "chroot", "ip", "hostname", "switch_root"]


class Ended(Exception):
    """Why a machine ended without a status."""


class Architecture:
    """How QEMU runs a machine. If its clock counts instructions, each takes 1 ns, whatever else this machine does."""

    def __init__(self, name, counts_instructions=False):
        self.name, self.counts_instructions = name, counts_instructions
        self.qemu = f"qemu-system-{name}"
        self.console = {"x86_64": "ttyS0", "aarch64": "ttyAMA0"}[name]

    def options(self):
        if self.name == "aarch64":
            return ["-machine", "virt", "-cpu", "cortex-a72"]
        if has_kvm() and not self.counts_instructions:
            return ["-enable-kvm", "-cpu", "host"]
        # With erms, the kernel would copy byte by byte, an instruction for each.
        emulated = ["-cpu", "max,erms=off,fsrm=off"]
        # Idle time is skipped.
        return ["-icount", "shift=0,sleep=off", *emulated] if self.counts_instructions else emulated


def has_kvm():
    """Whether these processors can run virtual machines of any kernel. That /dev/kvm exists does not prove it."""
    flags = pathlib.Path("/proc/cpuinfo").read_text().split()
    return os.access("/dev/kvm", os.R_OK | os.W_OK) and ("vmx" in flags or "svm" in flags)


def require_programs(architecture):
    """Ends the script if programs are missing."""
    if os.geteuid() != 0:
        fail("needs root", CANNOT_RUN)
    needed = [architecture.qemu, "apt-get", "dpkg-deb", "busybox", "mmdebstrap", "mksquashfs", "zip", "zstd", "/sbin/depmod", "/sbin/mkfs.ext4"]
    lacking = [program for program in needed if shutil.which(program) is None]
    if lacking:
        fail(f"{', '.join(lacking)} missing: scripts/install-deps vm", CANNOT_RUN)


def initial_files(work, kernel, architecture, busybox, command, share):
    """The file system that the kernel starts with."""
    root = work / "root"
    for name in ["bin", "modules", "proc", "sys", "dev"]:
        (root / name).mkdir(parents=True)
    shutil.copy(busybox, root / "bin/busybox")
    for name in PROGRAMS:
        (root / "bin" / name).symlink_to("busybox")
    names = []
    for file in kernel.module_files(FIRST):
        names.append(file.name.removesuffix(file.suffix) if file.suffix != ".ko" else file.name)
        (root / "modules" / names[-1]).write_bytes(unpacked_module(file))
    share = "" if share is None else (
        f"mkdir -p {shlex.quote(f'/new{share}')}; "
        f"mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 share {shlex.quote(f'/new{share}')}")
    last = LAST.format(command=shlex.quote(command), console=architecture.console, marker=MARKER)
    text = INIT.format(modules=" ".join(names), later=" ".join(LATER), version=kernel.version, share=share,
                       last=shlex.quote(last), console=architecture.console)
    (root / "init").write_text(text)
    (root / "init").chmod(0o755)
    archive = work / "initramfs"
    members = "\0".join(str(path.relative_to(root)) for path in [root, *root.rglob("*")])
    with archive.open("wb") as out:
        words = ["busybox", "cpio", "-o", "-H", "newc", "-0"]
        subprocess.run(words, cwd=root, input=members.encode(), stdout=out, stderr=subprocess.DEVNULL, check=True)
    return archive


def seen(directory, tag, more=""):
    """Options that show a directory of this machine to the other one."""
    return ["-virtfs", f"local,path={directory},mount_tag={tag},security_model=none,multidevs=remap{more}"]


class Machine:
    """What a virtual machine has. `root` is the directory that it sees as its root."""

    def __init__(self, kernel, architecture, root="/", busybox="/bin/busybox", memory=4096, processors=2, disk=8,
                 share=None, timeout=3600):
        self.kernel, self.architecture, self.root, self.busybox = kernel, architecture, root, busybox
        self.memory, self.processors, self.disk, self.share, self.timeout = memory, processors, disk, share, timeout

    def run(self, command, take):
        """Runs a command of bash; passes each line that it prints to `take`. Returns its status; 124 if it takes too
        long."""
        with tempfile.TemporaryDirectory(dir=KEPT) as work:
            words = self.words(pathlib.Path(work), command)
            return self.follow(["timeout", str(self.timeout), *map(str, words)], take)

    def words(self, work, command):
        disk = work / "disk"
        with disk.open("wb") as file:
            file.truncate(self.disk << 30)
        call("/sbin/mkfs.ext4", "-q", "-F", disk)
        kernel, console = self.kernel, self.architecture.console
        initrd = initial_files(work, kernel, self.architecture, self.busybox, command, self.share)
        return [
            self.architecture.qemu, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
            *self.architecture.options(), "-m", self.memory, "-smp", self.processors,
            "-kernel", kernel.image(), "-initrd", initrd,
            "-append", f"console={console} quiet loglevel=3 oops=panic panic=-1",
            "-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
            *seen(self.root, "root", ",readonly=on"), *seen(kernel.modules / kernel.version, "modules", ",readonly=on"),
            *(seen(self.share, "share") if self.share else []),
            "-drive", f"file={disk},format=raw,if=virtio,cache=unsafe",
        ]

    def follow(self, words, take):
        status = None
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as machine:
            try:
                for line in machine.stdout:
                    text = line.decode(errors="replace").rstrip("\r\n")
                    before, found, number = text.partition(f"{MARKER} ")
                    if before or not found:
                        take(before)
                    if found:
                        status = int(number)
                        break
            finally:
                machine.terminate()
        if status is None and machine.returncode == 124:
            return 124
        if status is None:
            raise Ended("the machine ended before the command did")
        return status
