"""Large files with a table each, read in place: HDF5, Parquet, Arrow, LMDB, SQLite, NumPy, safetensors."""

from userslib import archives

SCRIPTS = [
    ("h5py", "hdf5.py"),
    ("pyarrow, Parquet and Arrow IPC", "arrow_files.py"),
    ("lmdb", "lmdb_file.py"),
    ("sqlite3", "sqlite_file.py"),
    ("numpy, torch and safetensors, mapped", "mapped.py"),
]


def tables(stage):
    directory = stage.work / "tables"
    stage.user("make_tables.py", directory)
    views = archives.views_of(stage, directory)
    for what, script in SCRIPTS:
        stage.compare(what, directory, views, script)
