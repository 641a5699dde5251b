"""What scripts/bench-loaders is made of, beside the modules of scripts/bench.

With the standard library alone, as all of benchlib:
phases     the names of what is measured
forms      the ways to keep the images: how each is made, what a job has to do before it can read
server     the process with torch that reads, as its client sees it
measure    the rounds
lines      how much code differs between the loader of a folder and the others
report     README.md with tables, a chart

Run by the Python that has torch:
images     makes the images, and a tar of them
convert    from that tar to HDF5, LMDB and WebDataset
load       what a worker does with the bytes of an image
epoch      epochs, one after the other, as the server is told
read_*     the loaders, each as somebody would write it who keeps images in that form
"""
