"""The training program of scripts/bench/recipes: reads two epochs with a loader, and notes when what happened.

    python3 -m benchlib.loaders.job READER PATH WORKERS

READER is as in epoch.py. Writes JSON to $RESULT: the times (Unix) of the first batch and of the ends of the epochs,
and a checksum of all images and labels. If $WAIT_FOR_END is set, it sleeps after the first batch instead.
"""

import importlib
import json
import os
import pathlib
import sys
import time

from benchlib.loaders.load import checksum, combined


def write(result):
    path = pathlib.Path(os.environ["RESULT"])
    part = path.with_suffix(".part")
    part.write_text(json.dumps(result))
    part.rename(path)


def main():
    reader, path, workers = sys.argv[1:]
    batches = importlib.import_module(f"benchlib.loaders.read_{reader}").loader(path, checksum, int(workers), 1)
    result = {"first": None, "ends": [], "sums": []}
    for _ in range(2):
        total = files = 0
        for (sums, *_), labels in batches:
            if result["first"] is None:
                result["first"] = time.time()
                if os.environ.get("WAIT_FOR_END"):
                    write(result)
                    time.sleep(600)
            files += len(sums)
            total += combined(sums, labels)
        result["ends"].append(time.time())
        result["sums"].append([files, total])
    write(result)


if __name__ == "__main__":
    main()
