#!/bin/bash
# Prolog= of slurm.conf: before a job, the node can mount, and no dead mount of its user is in the way.
# It is run as root. Whatever happens it ends with 0 in time, for Slurm drains a node whose prolog fails.

# An absolute path, as Slurm gives a prolog no PATH to speak of.
archfs=/usr/local/bin/archfs

[ -e /dev/fuse ] || timeout 10 modprobe fuse > /dev/null 2>&1

# As the user, whose own records and mounts these are. gc leaves alone what is alive, such as the mounts
# of other jobs of theirs. A hanging file system or name service may cost 20 seconds, never more.
uid=${SLURM_JOB_UID:-}
if [ -x "$archfs" ] && [ -n "$uid" ]; then
    # shellcheck disable=SC2016 # the inner shell puts these in
    timeout --kill-after=2 20 sh -c '
        exec setpriv --reuid="$1" --regid="$(id -g "$1")" --clear-groups "$2" gc
    ' sh "$uid" "$archfs" < /dev/null > /dev/null 2>&1
fi
exit 0
