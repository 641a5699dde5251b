"""The files of a machine of another architecture: Debian's packages, unpacked."""

from vmlib.kernels import DEBIAN_NAMES, KEPT, KEYRING, mirror
from vmlib.shell import call, made

SUITE = "bookworm"
PACKAGES = ["bash", "coreutils", "util-linux", "mount", "python3-minimal", "libpython3-stdlib", "kmod", "fuse3", "diffutils",
            "findutils", "grep", "sed", "tar", "gzip", "procps", "busybox-static", "libc-bin"]


def directory(machine):
    """The root directory, made once."""
    path = KEPT / f"root-{machine}"
    if not path.exists():
        with made(path) as making:
            fill(making, DEBIAN_NAMES[machine])
    return path


def fill(root, architecture):
    # Only unpacked: no program of another architecture can run here.
    call("mmdebstrap", "--quiet", "--mode=root", "--variant=extract", f"--architectures={architecture}",
         f"--include={','.join(PACKAGES)}", f"--keyring={KEYRING}", SUITE, root, f"deb {mirror()} {SUITE} main")
    # fusermount3 looks up the name of its user.
    accounts = "root:x:0:0::/root:/bin/bash\nuser:x:1000:1000::/tmp:/bin/bash\n"
    for name, text in [("passwd", accounts), ("group", "root:x:0:\nuser:x:1000:\n")]:
        (root / "etc" / name).write_text(text)
    # What scripts of the packages would make.
    for link, target in [("etc/mtab", "/proc/self/mounts"), ("bin/sh", "bash")]:
        (root / link).unlink(missing_ok=True)
        (root / link).symlink_to(target)
