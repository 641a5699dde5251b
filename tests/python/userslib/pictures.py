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
    directory = stage.work / "pictures"
    stage.user("make_pictures.py", directory, 8, 60)
    return directory, [*archives.views_of(stage, directory), archives.shards(stage, directory),
                    archives.tar_of_tars(directory)]


def image_folder(stage):
    directory, views = dataset(stage)
    is_long = "ARCHFS_LONG_TESTS" in os.environ
    spawned = [view for view in views if is_long or view.name in SPAWNED_FROM]
    forked = [view for view in views if view not in spawned]
    # Two spawned workers show what eight do, unless time does not matter.
    loaders = [loader for loader in LOADERS if is_long or loader != "spawn:8"]
    stage.compare("ImageFolder, 0, 2 and 8 workers", directory, spawned, "image_folder.py", *loaders)
    loaders = [loader for loader in LOADERS if loader.startswith("fork")]
    if forked:
        stage.compare("ImageFolder, 0, 2 and 8 forked workers", directory, forked, "image_folder.py", *loaders)


def decoders(stage):
    directory, views = dataset(stage)
    stage.compare("PIL and torchvision.io", directory, views, "decoders.py")


def hugging_face(stage):
    directory, views = dataset(stage)
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(stage.work / "hugging-face")}
    stage.compare("load_dataset('imagefolder')", directory, views, "hugging_face.py", environment=offline)


def shards_inside(stage):
    """Shards as files of an image: not shown as directories, but read as tars by the package."""
    directory, _ = dataset(stage)
    sharded = stage.work / "sharded"
    (sharded / "train").mkdir(parents=True)
    stage.pack("--shards", "512K", "--shuffle", "7", "--labels", directory, sharded / "train" / "part.tar")
    for workers in [0, 2]:
        stage.compare(f"webdataset, shards inside an archive, {workers} workers", sharded,
                      archives.views_of(stage, sharded) if workers == 0 else views_made(sharded),
                      "shards.py", workers)


def tensorflow(stage):
    directory, views = dataset(stage)
    try:
        python = environment.tensorflow()
    except environment.Missing as missing:
        raise Problem(f"tensorflow is not available: {missing}") from missing
    stage.compare("tf.data and image_dataset_from_directory", directory, views, "tf_data.py", python=python)


def views_made(directory):
    return [View(name, (directory.with_suffix("." + name),)) for name in ["sqfs", "tar", "tar.gz"]]
