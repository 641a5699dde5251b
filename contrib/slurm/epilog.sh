#!/bin/bash
# Epilog= of slurm.conf: after a job, clears what a killed archfs left on the node. The ways to mount that
# docs/SLURM.md recommends leave nothing, unless all processes get SIGKILL, for example when memory runs out.
# Runs as root. Always exits with 0 in time, because Slurm drains a node whose epilog fails.

# An absolute path, because Slurm gives an epilog almost no PATH.
archfs=/usr/local/bin/archfs

# Runs as the user, who owns these records and mounts. gc leaves live mounts alone, such as those of the
# user's other jobs. A hanging file system or name service costs at most 20 seconds.
uid=${SLURM_JOB_UID:-}
if [ -x "$archfs" ] && [ -n "$uid" ]; then
    # shellcheck disable=SC2016 # the inner shell puts these in
    timeout --kill-after=2 20 sh -c '
        exec setpriv --reuid="$1" --regid="$(id -g "$1")" --clear-groups "$2" gc
    ' sh "$uid" "$archfs" < /dev/null > /dev/null 2>&1
fi
exit 0
