"""The same directory as archives of several kinds, each created as its users would."""

import os
import tarfile

from userslib.stage import View


def views_of(stage, directory):
    """An image, a tar and a compressed tar of a directory."""
    return [image(stage, directory), *tars(stage, directory)]


def image(stage, directory, *options):
    target = directory.with_suffix(".sqfs")
    stage.pack(*options, directory, target)
    return View("sqfs", (target,))


def tars(stage, directory):
    views = []
    for name, flag in [("tar", "-cf"), ("tar.gz", "-czf")]:
        target = directory.with_suffix("." + name)
        stage.call("tar", flag, target, "-C", directory, ".")
        views.append(View(name, (target,)))
    return views


def shards(stage, directory):
    """Parts for WebDataset, mounted together as one directory."""
    shards = directory.with_name(directory.name + "-shards")
    shards.mkdir()
    stage.pack("--shards", "256K", "--shuffle", "7", directory, shards / "part.tar")
    parts = tuple(sorted(shards.glob("part-*.tar")))
    assert len(parts) > 2, f"only {len(parts)} shards"
    return View(f"{len(parts)} shards", parts)


def tar_of_tars(directory):
    """As ImageNet is distributed: a tar of one tar per class."""
    target = directory.with_name(directory.name + "-classes.tar")
    with tarfile.open(target, "w") as outer:
        for class_directory in sorted(entry for entry in directory.iterdir() if entry.is_dir()):
            inner = directory.with_name(class_directory.name + ".tar")
            with tarfile.open(inner, "w") as archive:
                for name in sorted(os.listdir(class_directory)):
                    archive.add(class_directory / name, name)
            outer.add(inner, inner.name)
            inner.unlink()
    return View("tar of tars", (target,), ("--recursive",))
