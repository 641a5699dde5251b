"""Two epochs of tf.data on a list of files, shuffled by a seed, and of Keras's directory of classes. Prints a digest.

Usage: tf_data.py DIRECTORY
"""

import hashlib
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow  # noqa: E402

SIDE = 64


def decoded(path):
    picture = tensorflow.io.decode_jpeg(tensorflow.io.read_file(path), channels=3)
    # Cropping, because the rounding of a resize may differ.
    return path, tensorflow.image.resize_with_crop_or_pad(picture, SIDE, SIDE)


def tell(name, batches, root):
    digest, count = hashlib.sha256(), 0
    for first, second in batches:
        for part in [first.numpy(), second.numpy()]:
            digest.update(part.tobytes() if part.dtype != object else
                          b"\n".join(os.path.relpath(path, root) for path in part))
        count += len(first)
    print(f"{name}: {count} pictures, {digest.hexdigest()}", flush=True)


def main():
    root = sys.argv[1]
    files = sorted(str(path) for path in pathlib.Path(root).rglob("*.jpg"))
    of_list = tensorflow.data.Dataset.from_tensor_slices(files).shuffle(len(files), seed=7)
    of_pattern = tensorflow.data.Dataset.list_files(f"{root}/*/*.jpg", shuffle=False)
    for name, dataset in [("a list", of_list), ("list_files", of_pattern)]:
        batches = dataset.map(decoded, num_parallel_calls=8, deterministic=True).batch(32).prefetch(2)
        for epoch in range(2):
            tell(f"{name}, epoch {epoch}", batches, os.fsencode(root))
    classes = tensorflow.keras.utils.image_dataset_from_directory(
        root, image_size=(SIDE, SIDE), batch_size=32, seed=7, verbose=False)
    print(classes.class_names)
    tell("image_dataset_from_directory", classes, os.fsencode(root))


if __name__ == "__main__":
    main()
