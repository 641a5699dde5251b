"""Reads tables, arrays and images by URLs, as pandas, zarr and datasets pass them to fsspec.

Usage: fsspec_urls.py BEFORE AFTER, the parts of a URL before and after the path
       fsspec_urls.py --make DIRECTORY
"""

import hashlib
import pathlib
import sys

import datasets
import fsspec
import numpy
import pandas
import PIL.Image
import zarr


def make(directory):
    directory.mkdir()
    random = numpy.random.default_rng(7)
    table = pandas.DataFrame({"number": range(100_000), "text": [f"row {row}" for row in range(100_000)]})
    table.to_parquet(directory / "table.parquet")
    table[:1000].to_csv(directory / "table.csv", index=False)
    array = zarr.open(directory / "array.zarr", mode="w", shape=(1000, 1000), chunks=(100, 100), dtype="f4")
    array[:] = random.random((1000, 1000), dtype="f4")
    for name in "cat", "dog":
        (directory / "pictures" / name).mkdir(parents=True)
        for number in range(5):
            pixels = random.integers(0, 255, (32, 32, 3), dtype="u1")
            PIL.Image.fromarray(pixels).save(directory / "pictures" / name / f"{number}.png")


def digest(data):
    return hashlib.sha256(data).hexdigest()


def main(before, after):
    datasets.disable_progress_bars()
    for read, name in (pandas.read_parquet, "table.parquet"), (pandas.read_csv, "table.csv"):
        table = read(before + name + after)
        print(name, len(table), digest(pandas.util.hash_pandas_object(table).to_numpy().tobytes()))
    array = zarr.open(before + "array.zarr" + after, mode="r")
    print("array", array.shape, digest(array[:].tobytes()), digest(array[250:260, 5:].tobytes()))
    rows = datasets.load_dataset("imagefolder", data_files=before + "pictures/**" + after, split="train", streaming=True)
    print("pictures", sorted(digest(numpy.asarray(row["image"]).tobytes()) for row in rows))
    table = datasets.load_dataset("parquet", data_files=before + "table.parquet" + after, split="train", streaming=True)
    print("rows", digest(repr(list(table)).encode()))
    with fsspec.open_files(before + "pictures/*/1.png" + after)[0] as file:
        print("file", digest(file.read()))


if __name__ == "__main__":
    if sys.argv[1] == "--make":
        make(pathlib.Path(sys.argv[2]))
    else:
        main(*sys.argv[1:])
