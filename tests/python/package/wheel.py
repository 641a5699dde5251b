"""Checks the contents of the wheel or source distribution that pip was given, and prints what is wrong.

Usage: wheel.py WHEEL
       wheel.py --sdist MATURIN DIRECTORY      makes the source distribution in DIRECTORY and checks that
"""

import pathlib
import subprocess
import sys
import tarfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
LICENSES = {"LICENSE", "LICENSE-APACHE", "LICENSE-MIT", "docs/licenses/THIRD-PARTY"}
# Only for the wheel; a program of 40 MB contains debug information.
LARGEST = 24 << 20


def wheel(path):
    wrong = []
    modules = {f"archfs/{file.name}" for file in (ROOT / "python" / "archfs").glob("*") if file.is_file()}
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        about = next(name for name in names if name.endswith(".dist-info/METADATA")).rsplit("/", 1)[0]
        text = archive.read(f"{about}/METADATA").decode()
        tags = archive.read(f"{about}/WHEEL").decode()
    program = about.replace(".dist-info", ".data/scripts/archfs")
    expected = modules | {program} | {f"{about}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt")}
    expected |= {f"{about}/licenses/{name}" for name in LICENSES}
    # A list of the program's crates, which some versions of maturin add.
    extra = {name for name in names - expected if not name.startswith(f"{about}/sboms/")}
    wrong += [f"missing: {name}" for name in sorted(expected - names)]
    wrong += [f"not meant to be in it: {name}" for name in sorted(extra)]
    version = next(line for line in (ROOT / "Cargo.toml").read_text().splitlines() if line.startswith("version"))
    for line in (
        "Name: archfs",
        f"Version: {version.split(chr(34))[1]}",
        "Requires-Python: >=3.9",
        "License-Expression: MIT OR Apache-2.0",
        "Description-Content-Type: text/markdown",
        "Classifier: Typing :: Typed",
    ):
        if not any(found.startswith(line) for found in text.splitlines()):
            wrong.append(f"the metadata has no {line!r}")
    needs = [line for line in text.splitlines() if line.startswith("Requires-Dist") and "extra ==" not in line]
    if needs:
        wrong.append("it depends on other packages")
    if "Tag: py3-none-" not in tags:
        wrong.append(f"it is not for every Python 3: {tags}")
    if pathlib.Path(path).stat().st_size > LARGEST:
        wrong.append(f"it has {pathlib.Path(path).stat().st_size} bytes")
    return wrong


def sdist(maturin, directory):
    subprocess.run([maturin, "sdist", "--out", directory], cwd=ROOT, check=True)
    (path,) = pathlib.Path(directory).glob("archfs-*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    needed = {"Cargo.toml", "Cargo.lock", "pyproject.toml", "README.md", "src/main.rs", "PKG-INFO"} | LICENSES
    needed |= {f"python/archfs/{file.name}" for file in (ROOT / "python" / "archfs").glob("*") if file.is_file()}
    return [f"missing: {name}" for name in sorted(needed - names)]


def main():
    wrong = sdist(*sys.argv[2:]) if sys.argv[1] == "--sdist" else wheel(sys.argv[1])
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
