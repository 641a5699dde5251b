#!/bin/bash
# Prolog= of slurm.conf: before a job, makes sure that the node can mount, and clears stale mounts of the
# user. Runs as root. Always exits with 0 in time, because Slurm drains a node whose prolog fails.

# An absolute path, because Slurm gives a prolog almost no PATH.
archfs=/usr/local/bin/archfs

[ -e /dev/fuse ] || timeout 10 modprobe fuse > /dev/null 2>&1

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
