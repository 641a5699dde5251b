"""Reads Parquet, Feather and Arrow IPC files with pyarrow: whole, by column, with filters, and memory-mapped.

Usage: arrow_files.py DIRECTORY
"""

import hashlib
import sys

import pyarrow
import pyarrow.compute
import pyarrow.dataset
import pyarrow.feather
import pyarrow.parquet


def digest(table):
    """A digest of the values, however they are chunked."""
    return table.num_rows, hashlib.sha256(repr(table.to_pydict()).encode()).hexdigest()


def main():
    root = sys.argv[1]
    for way in [{"memory_map": False}, {"memory_map": True}]:
        print("parquet", way, digest(pyarrow.parquet.read_table(f"{root}/table.parquet", **way)))
        print("feather", way, digest(pyarrow.feather.read_table(f"{root}/table.feather", **way)))
    file = pyarrow.parquet.ParquetFile(f"{root}/table.parquet", pre_buffer=True)
    print("groups", file.num_row_groups, digest(file.read_row_groups([5, 1], columns=["name", "id"])))
    parts = pyarrow.dataset.dataset(f"{root}/parts", format="parquet", partitioning="hive")
    chosen = parts.to_table(filter=pyarrow.compute.field("value") > 1.0).sort_by("id")
    print("dataset", len(parts.files), digest(chosen))
    with pyarrow.memory_map(f"{root}/table.arrow", "r") as source:
        batches = pyarrow.ipc.open_file(source)
        print("ipc", batches.num_record_batches, digest(pyarrow.Table.from_batches([batches.get_batch(3)])))
        print("ipc, whole", digest(batches.read_all()))


if __name__ == "__main__":
    main()
