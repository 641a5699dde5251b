#!/usr/bin/env bash
# Shared by the tests and remains: jobs that mount, ways to do so, and what they leave behind. To be
# sourced within a cluster of tests/slurm/test-cluster.

# Creates a directory for the files of one job: archfs under its own path, by which its processes are
# recognized, a directory for mount points, and the job's output.
#   new_case NAME USER
new_case() {
    local case=$ARCHFS_TEST_DIRECTORY/$1
    install -d -o "$2" "$case" "$case/mounts"
    ln "$ARCHFS_TEST_DIRECTORY/archfs" "$case/archfs"
    chown "$2" "$case" "$case/mounts"
}

# Copies the program and a small archive to where all users can read them.
set_up() {
    local source=$ARCHFS_TEST_DIRECTORY/source
    local program=${ARCHFS:-target/debug/archfs}
    install -m 755 "$program" "$ARCHFS_TEST_DIRECTORY/archfs"
    mkdir "$source"
    echo 'hello, world' > "$source/hello"
    head -c 300000 /dev/urandom > "$source/data"
    for name in image other; do
        mksquashfs "$source" "$ARCHFS_TEST_DIRECTORY/$name.sqfs" -quiet -no-progress > /dev/null
    done
    # What runs in a job while files are there: reads, keeps a file open as programs do, and ends.
    cat > "$ARCHFS_TEST_DIRECTORY/work" << 'END'
#!/bin/bash
# work HOW: ends, fails, waits for its time limit (limit); has its job ended by scancel, or by scancel
# --signal=KILL --full (kill); or all of its processes killed at once (killed), as when a job's memory
# runs out.
cmp -s "$mount_point/data" "$ARCHFS_TEST_DIRECTORY/source/data" || exit 98
exec 9< "$mount_point/data"
: > "$case/started"
# The number of one job of an array may be that of the whole array.
job=${SLURM_ARRAY_TASK_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
job=${job:-$SLURM_JOB_ID}
case $1 in
    ends) exit 0 ;;
    fails) exit 3 ;;
    scancel) scancel "$job" & ;;
    kill) scancel --signal=KILL --full "$job" & ;;
    killed)
        for process in /proc/[0-9]*; do
            if grep -qzxs "SLURM_JOB_ID=$SLURM_JOB_ID" "$process/environ"; then
                processes+=("${process#/proc/}")
            fi
        done 2> /dev/null
        kill -KILL "${processes[@]}"
        ;;
esac
exec sleep 600
END
    chmod 755 "$ARCHFS_TEST_DIRECTORY/work"
}

# Runs a command as root or the test user, without root's environment.
#   as_user USER COMMAND...
as_user() {
    local user=$1
    shift
    setpriv --reuid "$user" --regid "$(id -g "$user")" --init-groups env --ignore-environment \
        PATH="$PATH" USER="$user" HOME="$(getent passwd "$user" | cut -d: -f6)" TMPDIR=/tmp \
        SLURM_CONF="$SLURM_CONF" ARCHFS_TEST_DIRECTORY="$ARCHFS_TEST_DIRECTORY" "$@"
}

# Prints the script of a job that mounts in one of the ways below and runs COMMAND. The caller's script head
# sets $case and $mount_point.
#   job_script WAY COMMAND
job_script() {
    local work=$2
    # shellcheck disable=SC2016 # the job's variables
    local what='"$ARCHFS_TEST_DIRECTORY/image.sqfs" "$mount_point"'
    case $1 in
        mount)
            echo "archfs mount -q $what || exit 97"
            echo "$work"
            ;;
        mount-srun)
            echo "archfs mount -q $what || exit 97"
            # shellcheck disable=SC2016
            echo 'srun --ntasks=1 test -e "$mount_point/hello" || exit 97'
            echo "srun --ntasks=1 $work"
            # shellcheck disable=SC2016
            echo 'status=$?; true; exit $status'
            ;;
        no-step)
            echo "archfs mount -q --job-step never $what || exit 97"
            echo "$work"
            ;;
        always)
            echo "archfs mount -q --job-step always $what || exit 97"
            echo "$work"
            ;;
        trap)
            echo "archfs mount -q $what || exit 97"
            # shellcheck disable=SC2016
            echo 'trap '\''archfs unmount --lazy "$mount_point"'\'' EXIT'
            echo "$work"
            ;;
        exec-run) echo "exec archfs run -q $what -- $work" ;;
        srun-run) echo "srun --overlap --ntasks=1 archfs run -q $what -- $work" ;;
        step)
            echo "srun --overlap --ntasks=1 archfs mount --foreground -q $what &"
            # shellcheck disable=SC2016
            echo 'archfs wait --timeout 60s "$mount_point" || exit 97'
            echo "$work"
            # shellcheck disable=SC2016
            echo 'status=$?; archfs unmount --lazy "$mount_point"; wait; exit $status'
            ;;
        private) echo "exec archfs run --private -q $what -- $work" ;;
    esac
}

# Whether archfs has a subcommand, or an option of one.
#   can COMMAND [OPTION]
can() {
    "$ARCHFS_TEST_DIRECTORY/archfs" "$1" --help 2> /dev/null | grep -qe "${2:-Usage}"
}

# Prints what remains of jobs in directories that begin with PREFIX, one per line: its kind and path. Never
# accesses a mount itself, because a stale one does not answer and a slow one blocks.
#   left PREFIX UID
left() {
    awk -v p="$1" 'index($5, p) == 1 { print "mount", $5 }' /proc/self/mountinfo
    # Listing the parent directory returns a name without accessing what it names.
    find "$1"* -maxdepth 2 -path '*/mounts/*' -prune -printf 'directory %p\n' 2> /dev/null
    find /proc -maxdepth 2 -path '/proc/[0-9]*/exe' -lname "$1*/archfs*" -printf 'process %l\n' \
        2> /dev/null
    grep -raoE --no-messages --no-filename "$1([^/]*/)?mounts/" "/tmp/archfs-$2" | sed 's/^/record /'
    return 0
}

# Waits up to some seconds until nothing remains, and prints what still does.
#   left_after SECONDS PREFIX UID
left_after() {
    local rest
    for _ in $(seq "$(($1 * 20))"); do
        rest=$(left "$2" "$3")
        [ -n "$rest" ] || return 0
        sleep 0.05
    done
    echo "$rest"
}

# Prints what is on the nodes of a cluster with --apart: mounts of archfs, directories and records.
#   on_nodes UID
on_nodes() {
    local pid_file node root
    for pid_file in "$ARCHFS_TEST_DIRECTORY"/../slurmd-node*.pid; do
        node=${pid_file##*/slurmd-}
        node=${node%.pid}
        root=/proc/$(cat "$pid_file")/root
        awk -v node="$node" '/ fuse\.archfs / { print node, "mount", $5 }' "${root%root}mountinfo"
        find "$root/dev/shm" -mindepth 1 -maxdepth 1 -printf "$node directory %f\n" 2> /dev/null || true
        find "$root/tmp/archfs-$1" -mindepth 1 -printf "$node record %f\n" 2> /dev/null || true
    done
}
