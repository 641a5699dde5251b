"""Makes files with one table each, in the formats of single-file datasets.

Usage: make_tables.py DIRECTORY
"""

import pathlib
import sqlite3
import sys

import h5py
import lmdb
import numpy
import pyarrow
import pyarrow.dataset
import pyarrow.feather
import pyarrow.parquet
import safetensors.torch
import torch

ROWS = 20_000


def arrow(root, rng):
    table = pyarrow.table({"id": numpy.arange(ROWS), "value": rng.normal(size=ROWS),
                           "name": [f"name {number % 97}" for number in range(ROWS)],
                           "group": numpy.arange(ROWS) % 4})
    pyarrow.parquet.write_table(table, root / "table.parquet", row_group_size=3000, compression="zstd")
    pyarrow.dataset.write_dataset(table, root / "parts", format="parquet", partitioning=["group"],
                                  partitioning_flavor="hive")
    pyarrow.feather.write_feather(table, root / "table.feather", compression="lz4")
    with pyarrow.OSFile(str(root / "table.arrow"), "wb") as sink:
        with pyarrow.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=3000)


def hdf5(root, rng):
    with h5py.File(root / "table.h5", "w") as file:
        file["whole"] = rng.normal(size=(500, 64))
        chunked = rng.integers(0, 50, (3000, 128))
        file.create_dataset("chunked", data=chunked, chunks=(100, 128), compression="gzip")
        file["group/names"] = [f"name {number}" for number in range(300)]
        file["group"].attrs["made"] = "for reading"


def key_values(root, rng):
    for name, subdir in [("directory.lmdb", True), ("file.lmdb", False)]:
        with lmdb.open(str(root / name), map_size=64 << 20, subdir=subdir, lock=False) as base:
            with base.begin(write=True) as change:
                for number in range(2000):
                    change.put(b"%08d" % number, rng.bytes(int(rng.integers(1, 6000))))


def sqlite(root, rng):
    for name, mode in [("table.db", "delete"), ("wal.db", "wal")]:
        base = sqlite3.connect(root / name)
        base.execute(f"pragma journal_mode = {mode}")
        base.execute("create table sample (id integer primary key, label integer, body blob)")
        base.executemany("insert into sample values (?, ?, ?)",
                         ((row, row % 10, rng.bytes(1000)) for row in range(3000)))
        base.execute("create index by_label on sample (label)")
        base.commit()
        base.close()


def arrays(root, rng):
    numpy.save(root / "rows.npy", rng.normal(size=(4000, 100)))
    numpy.savez(root / "several.npz", a=rng.normal(size=1000), b=numpy.arange(5000))
    generator = torch.Generator().manual_seed(0)
    state = {f"layer{number}.weight": torch.randn(64, 64, generator=generator) for number in range(40)}
    torch.save(state, root / "state.pt")
    safetensors.torch.save_file(state, root / "state.safetensors")


def main():
    root = pathlib.Path(sys.argv[1])
    root.mkdir()
    rng = numpy.random.default_rng(0)
    for make in [arrow, hdf5, key_values, sqlite, arrays]:
        make(root, rng)


if __name__ == "__main__":
    main()
