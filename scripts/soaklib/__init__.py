"""What scripts/soak is made of.

content    the bytes of every file, computed from the seed, the path and the offset
trees      the folders that are packed: what is in them and what has to be seen of it
archives   the archives of those folders
board      the memory that all processes share: who is alive, what was done
roles      what a worker does, one turn of each role, and what has to hold in it
crew       the workers: their start, their end, who is stopped, who hangs
guests     other holders of the mounts, which come, leave and are killed
daemons    the programs that serve the mounts: memory, descriptors, threads, numbers; their end
processes  what /proc tells
report     the lines while it runs and the table at the end
"""
