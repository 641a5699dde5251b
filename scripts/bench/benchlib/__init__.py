"""The parts of scripts/bench/run.

datasets   the directories, archives and lists of files that are measured
programs   running other programs: output, versions, building
mounts     mounting and unmounting, even after errors
systems    the systems compared: how each shows a dataset, and its version
reader     examples/epoch and epoch.py; the page cache; the memory of a daemon
rounds     the table of all measurements, and the interleaved rounds that fill it
sections   what is measured on which dataset
tars       the sections about compressed tars and their index
targets    the performance targets, and whether they were met
tables     CSV, JSON, Markdown and the terminal
chart      SVG
loaders    the parts of scripts/bench/loaders
"""
