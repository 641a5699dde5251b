"""The parts of scripts/soak.

content    the bytes of every file, computed from the seed, the path and the offset
trees      the directories that are packed, and what a mount of them must show
archives   the archives of those directories
board      memory shared by all processes: workers alive, counters
roles      what a worker does in one turn of each role, with its checks
crew       the workers: starting, ending, stopping them, detecting hangs
guests     other holders of the mounts, which start, exit and are killed
daemons    the daemons of the mounts: memory, descriptors, threads, counters, exit
processes  reads /proc
report     progress lines and the final table
"""
