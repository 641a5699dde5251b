"""What scripts/bench is made of.

datasets   the folders, archives and lists of files that are measured
programs   running others: output, versions, building
mounts     mounting and unmounting, whatever happens between
systems    who takes part: how each one shows a dataset, and its version
reader     examples/epoch and epoch.py; the page cache; the memory of a daemon
rounds     the table of all measurements, and the interleaved rounds that fill it
sections   what is measured of which dataset
tars       the sections about compressed tars and their index
targets    what has to be reached, and whether it was
tables     CSV, JSON, Markdown and the terminal
chart      SVG
loaders    what scripts/bench-loaders is made of
"""
