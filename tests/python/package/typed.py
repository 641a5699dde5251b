"""Uses the package as its types allow. mypy --strict checks this file; it is never run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional

import archfs


def mounts(archive: Path, name: bytes) -> list[str]:
    with archfs.mount(archive, name, at=b"/mnt", cache="4G", cache_idle=1.5, options=["uid=7"]) as root:
        found: list[str] = os.listdir(root)
    mount: archfs.Mount = archfs.mount("data.sqfs", cache=1 << 30, timeout=2)
    path: Path = mount.path
    text: str = os.fspath(mount)
    numbers: dict[str, object] = mount.stats()
    mount.unmount()
    until: Path = archfs.mount_until_exit(archive, nested=True, log_file=None)
    return [*found, text, str(path), str(until), *numbers]


def packs(size: archfs.Size) -> float:
    made: archfs.PackSummary = archfs.pack("a", Path("b"), "c.sqfs", files_from=["x", b"y"], map={"x": "z"})
    archfs.pack("a", archive="c.tar", shards=size, owner=(0, 0))
    image: archfs.ArchiveInfo = archfs.info(made["archive"])
    count: int = image["files"] + made["stored_bytes"] + len(archfs.executable())
    return count / made["seconds"]


def reads(archive: Path) -> list[str]:
    names: list[str] = [entry["path"] for entry in archfs.ls(archive, "train", b"val", descend=True)]
    data: bytes = archfs.read(archive, names[0]) + archfs.open(archive, names[1]).read()
    verified: archfs.Verified = archfs.verify(archive, threads=2)
    archfs.extract(archive, "more.tar", "out", only=[b"train"], overwrite=True)
    archfs.extract(archive, directory=Path(archfs.__version__))
    archfs.wait("/mnt", timeout=5)
    archfs.unmount(b"/mnt", lazy=True)
    mounts: list[archfs.Listed] = archfs.list()
    return [*names, str(data), verified["status"], *(mount["mountpoint"] for mount in mounts)]


def fails() -> Optional[str]:
    try:
        archfs.mount("a")
    except archfs.MissingFile as error:
        status: int = error.status
        return f"{error.hint} {status}"
    except (archfs.TimedOut, archfs.Error) as error:
        return error.hint
    print(archfs.no_such)  # type: ignore[attr-defined]
    archfs.mount(1)  # type: ignore[arg-type]
    archfs.mount("a", cache=1.5)  # type: ignore[arg-type]
    archfs.mount("a", no_such="x")  # type: ignore[call-arg]
    archfs.ls("a", offset=b"1")  # type: ignore[arg-type]
    archfs.pack("a", shuffle="x")  # type: ignore[arg-type]
    return None
