"""Sections that read images: torchvision, PIL, datasets, webdataset, tf.data."""

import functools
import os

from userslib import archives, environment
from userslib.report import Problem
from userslib.stage import View

# Start method and number of the DataLoader's workers. The first ones get a fresh mount.
LOADERS = ["fork:8", "spawn:8", "spawn:2", "fork:2", "fork:0"]
# Each spawned worker imports torch again, which takes seconds.
SPAWNED_FROM = ["sqfs", "tar.gz"]


@functools.cache
def dataset(stage):
    """8 classes of 60 JPEGs each, and every way to mount them."""
    folder = stage.work / "pictures"
    stage.user("make_pictures.py", folder, 8, 60)
    return folder, [*archives.views_of(stage, folder), archives.shards(stage, folder),
                    archives.tar_of_tars(folder)]


def image_folder(stage):
    folder, views = dataset(stage)
    is_long = "ARCHFS_LONG_TESTS" in os.environ
    spawned = [view for view in views if is_long or view.name in SPAWNED_FROM]
    forked = [view for view in views if view not in spawned]
    stage.compare("ImageFolder, 0, 2 and 8 workers", folder, spawned, "image_folder.py", *LOADERS)
    loaders = [loader for loader in LOADERS if loader.startswith("fork")]
    if forked:
        stage.compare("ImageFolder, 0, 2 and 8 forked workers", folder, forked, "image_folder.py", *loaders)


def decoders(stage):
    folder, views = dataset(stage)
    stage.compare("PIL and torchvision.io", folder, views, "decoders.py")


def hugging_face(stage):
    folder, views = dataset(stage)
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(stage.work / "hugging-face")}
    stage.compare("load_dataset('imagefolder')", folder, views, "hugging_face.py", environment=offline)


def shards_inside(stage):
    """Shards as files of an image: not shown as directories, but read as tars by the package."""
    folder, _ = dataset(stage)
    place = stage.work / "sharded"
    (place / "train").mkdir(parents=True)
    stage.pack("--shards", "512K", "--shuffle", "7", "--labels", folder, place / "train" / "part.tar")
    for workers in [0, 2]:
        stage.compare(f"webdataset, shards inside an archive, {workers} workers", place,
                      archives.views_of(stage, place) if workers == 0 else views_made(place),
                      "shards.py", workers)


def tensorflow(stage):
    folder, views = dataset(stage)
    try:
        python = environment.tensorflow()
    except environment.Missing as missing:
        raise Problem(f"tensorflow is not available: {missing}") from missing
    stage.compare("tf.data and image_dataset_from_directory", folder, views, "tf_data.py", python=python)


def views_made(folder):
    return [View(name, (folder.with_suffix("." + name),)) for name in ["sqfs", "tar", "tar.gz"]]
