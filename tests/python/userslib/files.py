"""Large files with a table each, read in place: HDF5, Parquet, Arrow, LMDB, SQLite, NumPy, safetensors."""

import os

from userslib import archives
from userslib.report import same
from userslib.stage import ROOT

SCRIPTS = [
    ("h5py", "hdf5.py"),
    ("pyarrow, Parquet and Arrow IPC", "arrow_files.py"),
    ("lmdb", "lmdb_file.py"),
    ("sqlite3", "sqlite_file.py"),
    ("numpy, torch and safetensors, mapped", "mapped.py"),
]


# What installing the package does.
REGISTER = """
import fsspec, runpy, sys
fsspec.register_implementation("archfs", "archfs.filesystem.ArchiveFileSystem")
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def urls(stage):
    """Archives without a mount, by fsspec."""
    directory = stage.work / "urls"
    stage.user("fsspec_urls.py", "--make", directory)
    local = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(stage.work / "hugging-face")}
    expected = stage.user("fsspec_urls.py", f"file://{directory}/", "", environment=local)
    package = {"PYTHONPATH": str(ROOT / "python"), "ARCHFS_EXECUTABLE": os.fspath(stage.archfs), **local}
    for view in archives.views_of(stage, directory):
        with stage.report.check(f"pandas, zarr and datasets by archfs://, {view.name}"):
            script = ROOT / "tests/python/users/fsspec_urls.py"
            arguments = ["archfs://", f"::{view.archives[0]}"]
            same(expected, stage.call(stage.python, "-c", REGISTER, script, *arguments, environment=package))


def tables(stage):
    directory = stage.work / "tables"
    stage.user("make_tables.py", directory)
    views = archives.views_of(stage, directory)
    for what, script in SCRIPTS:
        stage.compare(what, directory, views, script)
