"""Reads SQLite databases read-only: one with and without memory mapping, and one in WAL mode as immutable.

Usage: sqlite_file.py DIRECTORY
"""

import hashlib
import multiprocessing
import random
import sqlite3
import sys

QUERIES = ["table.db?mode=ro", "table.db?mode=ro&immutable=1", "table.db?mode=ro&nolock=1",
           "wal.db?mode=ro&immutable=1"]


def opened(root, query):
    return sqlite3.connect(f"file:{root}/{query}", uri=True)


def bodies(root, query, rows):
    base = opened(root, query)
    found = [base.execute("select body from sample where id = ?", [row]).fetchone()[0] for row in rows]
    base.close()
    return hashlib.sha256(b"".join(found)).hexdigest()


def main():
    root, choose = sys.argv[1], random.Random(1)
    wanted = [choose.sample(range(3000), 100) for _ in range(20)]
    for query in QUERIES:
        for mapped in [0, 64 << 20]:
            base = opened(root, query)
            base.execute(f"pragma mmap_size = {mapped}").fetchall()
            counts = base.execute("select label, count(*), sum(id) from sample group by label").fetchall()
            rows = base.execute("select body from sample order by id")
            digest = hashlib.sha256(b"".join(row[0] for row in rows)).hexdigest()
            print(query, mapped, base.execute("pragma quick_check").fetchall(), counts, digest)
            base.close()
        with multiprocessing.get_context("fork").Pool(3) as pool:
            print(query, pool.starmap(bodies, [(root, query, rows) for rows in wanted])[-1])


if __name__ == "__main__":
    main()
