"""Runs epochs and conversions on request, each in a new process with everything imported.

A line of JSON on standard input is a request: function, tar and output of convert.py; or reader, path, load,
images, workers, seed, epochs. The answer on standard output is also a line. For each epoch it has seconds,
first (seconds until the first batch), files, bytes, checksum and order (a checksum of the order), and the
memory of all its processes in the middle of the last epoch. Time starts when the loader is created, or when
the epoch begins.
"""

import gc
import importlib
import json
import multiprocessing
import os
import sys
import time
import traceback
import zlib

from benchlib import reader
from benchlib.loaders import convert
from benchlib.loaders import load as loads

READERS = {name: importlib.import_module(f"benchlib.loaders.read_{name}")
           for name in ["directory", "hdf5_bytes", "hdf5_vlen", "lmdb", "webdataset"]}


def answer(request):
    if "function" in request:
        convert.FUNCTIONS[request["function"]](request["tar"], request["output"])
        return "converted"
    start = time.perf_counter()
    batches = READERS[request["reader"]].loader(request["path"], loads.LOADS[request["load"]],
                                                request["workers"], request["seed"])
    epochs = []
    for number in range(request["epochs"]):
        last = number == request["epochs"] - 1
        epochs.append(epoch(batches, start, request["images"] // 2 if last else None))
        start = time.perf_counter()
    # This ends its workers.
    del batches
    gc.collect()
    return epochs


def epoch(batches, start, middle):
    files = size = checksum = order = 0
    first = memory = None
    for (sums, sizes, *_), labels in batches:
        first = first or time.perf_counter() - start
        files += len(sums)
        size += int(sizes.sum())
        checksum += loads.combined(sums, labels)
        order = zlib.crc32(sums.numpy().tobytes(), order)
        if middle and not memory and files >= middle:
            children = multiprocessing.active_children()
            memory = reader.anonymous_memory(os.getpid(), *(child.pid for child in children))
    return {"seconds": time.perf_counter() - start, "first": first, "files": files, "bytes": size,
            "checksum": f"{checksum % 2**64:016x}", "order": order, "memory": memory}


def main():
    # Other output of packages goes to standard error.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            try:
                print(json.dumps(answer(json.loads(line))), file=answers, flush=True)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        if os.waitpid(child, 0)[1]:
            print(json.dumps("failed"), file=answers, flush=True)


if __name__ == "__main__":
    main()
