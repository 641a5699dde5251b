"""The parts of scripts/bench/loaders, in addition to the modules of scripts/bench/run.

With the standard library alone, as all of benchlib:
phases     the names of what is measured
forms      the forms in which images are stored: creating each, and what a job does before it can read
server     the process with torch that reads, as its client sees it
measure    the rounds
lines      how much code differs between the loader of a directory and the others
report     README.md with tables, a chart

Run by the Python that has torch:
images     creates the images, and a tar of them
convert    converts that tar to HDF5, LMDB and WebDataset
load       what a worker does with the bytes of an image
epoch      runs epochs on request
read_*     the loaders, each as a user of that form would write it
"""
