"""The files of a machine of another architecture: Debian's packages, unpacked."""

import shutil

from vmlib.kernels import DEBIAN_NAMES, KEPT, KEYRING, mirror
from vmlib.shell import call

SUITE = "bookworm"
PACKAGES = ["bash", "coreutils", "util-linux", "mount", "python3-minimal", "libpython3-stdlib", "kmod", "fuse3", "diffutils",
            "findutils", "grep", "sed", "tar", "gzip", "procps", "busybox-static", "libc-bin"]


def directory(machine):
    """The root directory, made once."""
    place = KEPT / f"root-{machine}"
    if not place.exists():
        making = place.with_suffix(".making")
        shutil.rmtree(making, ignore_errors=True)
        making.parent.mkdir(parents=True, exist_ok=True)
        # Only unpacked: no program of another architecture can run here.
        call("mmdebstrap", "--quiet", "--mode=root", "--variant=extract", f"--architectures={DEBIAN_NAMES[machine]}",
             f"--include={','.join(PACKAGES)}", f"--keyring={KEYRING}", SUITE, making, f"deb {mirror()} {SUITE} main")
        # fusermount3 wants to know the name of its user.
        accounts = "root:x:0:0::/root:/bin/bash\nuser:x:1000:1000::/tmp:/bin/bash\n"
        for name, text in [("passwd", accounts), ("group", "root:x:0:\nuser:x:1000:\n")]:
            (making / "etc" / name).write_text(text)
        # What scripts of the packages would make.
        for link, target in [("etc/mtab", "/proc/self/mounts"), ("bin/sh", "bash")]:
            (making / link).unlink(missing_ok=True)
            (making / link).symlink_to(target)
        making.rename(place)
    return place
