"""The names of what scripts/bench/loaders measures."""

PREPARING, DISK = "made from the tar", "bytes on disk"
READY, JOB = "job start to first batch", "job start to end of epoch"
HELD, LOADER = "memory held for the data", "memory of the loader"


def second(workers):
    return f"second epoch, {workers} workers"


def fresh(workers):
    return f"first epoch, {workers} workers"


def decoding(workers):
    return f"epoch with decoding, {workers} workers"


TIMES = [PREPARING, READY, JOB]
SIZES = [DISK, HELD, LOADER]
