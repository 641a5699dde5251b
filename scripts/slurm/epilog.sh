#!/bin/bash
# Epilog= of slurm.conf: after a job, clears what a killed archfs left on the node. Of the ways to mount
# that docs/SLURM.md recommends nothing is left, but for SIGKILL to all processes, as memory running out
# may send it. It is run as root. Whatever happens it ends with 0 in time, for Slurm drains a node whose
# epilog fails.

# An absolute path, as Slurm gives an epilog no PATH to speak of.
archfs=/usr/local/bin/archfs

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
