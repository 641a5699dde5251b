"""The same directory as archives of several kinds, each created as its users would."""

import os
import tarfile

from userslib.stage import View


def views_of(stage, folder):
    """An image, a tar and a compressed tar of a directory."""
    return [image(stage, folder), *tars(stage, folder)]


def image(stage, folder, *options):
    target = folder.with_suffix(".sqfs")
    stage.pack(*options, folder, target)
    return View("sqfs", (target,))


def tars(stage, folder):
    views = []
    for name, flag in [("tar", "-cf"), ("tar.gz", "-czf")]:
        target = folder.with_suffix("." + name)
        stage.call("tar", flag, target, "-C", folder, ".")
        views.append(View(name, (target,)))
    return views


def shards(stage, folder):
    """Parts for WebDataset, mounted together as one directory."""
    place = folder.with_name(folder.name + "-shards")
    place.mkdir()
    stage.pack("--shards", "256K", "--shuffle", "7", folder, place / "part.tar")
    parts = tuple(sorted(place.glob("part-*.tar")))
    assert len(parts) > 2, f"only {len(parts)} shards"
    return View(f"{len(parts)} shards", parts)


def tar_of_tars(folder):
    """As ImageNet is distributed: a tar of one tar per class."""
    target = folder.with_name(folder.name + "-classes.tar")
    with tarfile.open(target, "w") as outer:
        for place in sorted(entry for entry in folder.iterdir() if entry.is_dir()):
            inner = folder.with_name(place.name + ".tar")
            with tarfile.open(inner, "w") as archive:
                for name in sorted(os.listdir(place)):
                    archive.add(place / name, name)
            outer.add(inner, inner.name)
            inner.unlink()
    return View("tar of tars", (target,), ("--recursive",))
