"""Links with delay between network namespaces, also on kernels without netem.

A link is two TAP devices. A process passes the frames of each to the other, some time later. The devices take segments
of up to 64 KiB, so that a few thousand frames a second carry hundreds of MB.
"""

import collections
import contextlib
import fcntl
import multiprocessing
import os
import select
import signal
import struct
import time

# From linux/if_tun.h.
TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6 = 1, 2, 4
# A frame of 64 KiB with its headers.
FRAME_MAX = (64 << 10) + 64
# Frames of one device before the others have their turn.
IN_A_TURN = 16


def tap(name):
    """Makes a TAP device in this network namespace. It is gone when the descriptor is closed."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(descriptor, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6)
    return descriptor


@contextlib.contextmanager
def carried(pairs, delay):
    """Passes frames between the devices of each pair, `delay` seconds later. It closes them at the end."""
    process = multiprocessing.get_context("fork").Process(target=carry, args=(pairs, delay))
    try:
        process.start()
        yield
    finally:
        if process.pid:
            process.kill()
            process.join()
        for descriptor in sum(pairs, ()):
            os.close(descriptor)


def carry(pairs, delay):
    # This process is ended by SIGKILL.
    for number in [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]:
        signal.signal(number, signal.SIG_IGN)
    # A link does not wait for the programs that use it.
    os.setpriority(os.PRIO_PROCESS, 0, -20)
    other = {**dict(pairs), **{right: left for left, right in pairs}}
    # All frames have the same delay, so the first that came is the first that goes.
    pending = collections.deque()
    while True:
        wait = max(0, pending[0][0] - time.monotonic()) if pending else None
        for device in select.select(list(other), [], [], wait)[0]:
            due = time.monotonic() + delay
            with contextlib.suppress(BlockingIOError):
                for _ in range(IN_A_TURN):
                    pending.append((due, other[device], os.read(device, FRAME_MAX)))
        while pending and pending[0][0] <= time.monotonic():
            _, device, frame = pending.popleft()
            # A device that is down loses frames, like a link.
            with contextlib.suppress(OSError):
                os.write(device, frame)
