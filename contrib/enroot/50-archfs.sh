#! /usr/bin/env bash
# A hook of enroot: shows archives in a container. Install it in /etc/enroot/hooks.d, or in
# ~/.config/enroot/hooks.d.
#
# - The mount of `archfs run` or `srun --archfs`, which ARCHFS_MOUNTPOINT names, appears at the same path.
# - With ARCHFS_ENROOT=ARCHIVE:PATH, ARCHIVE appears at PATH. The hook mounts it in the mount namespace of the
#   container, so no stale mount can be left on the node. It needs no fusermount3.
# shellcheck disable=SC2016 # the inner shell puts these in
set -eu

[ -n "${ARCHFS_MOUNTPOINT-}${ARCHFS_ENROOT-}" ] || exit 0

# Prints a path as fstab has it.
field() {
    local text=${1//\\/\\134}
    text=${text// /\\040}
    printf '%s' "${text//$'\t'/\\011}"
}

if [ -n "${ARCHFS_MOUNTPOINT-}" ]; then
    path=$(field "${ARCHFS_MOUNTPOINT}")
    enroot-mount --root "${ENROOT_ROOTFS}" - <<< "${path} ${path} none x-create=dir,bind,ro,nosuid,nodev,private"
    printf 'ARCHFS_MOUNTPOINT=%s\n' "${ARCHFS_MOUNTPOINT}" >> "${ENROOT_ENVIRON}"
fi

[ -n "${ARCHFS_ENROOT-}" ] || exit 0

archive=${ARCHFS_ENROOT%:/*}
path=/${ARCHFS_ENROOT##*:/}
if [ "${archive}" = "${ARCHFS_ENROOT}" ] || [ -z "${archive}" ] || [ "${path}" = / ]; then
    echo "archfs: error: ARCHFS_ENROOT: write ARCHIVE:/PATH" >&2
    exit 2
fi

# enroot mounts with a descriptor of /dev/fuse, and archfs answers on the same one. A user other than root cannot run
# fusermount3 in this user namespace.
exec {fuse}<> /dev/fuse
enroot-mount --root "${ENROOT_ROOTFS}" - << END
archfs $(field "${path}") fuse x-create=dir,fd=${fuse},rootmode=40000,user_id=$(id -u),group_id=$(id -g),ro,nosuid,nodev
END

# Closes all descriptors but the first three and those named. enroot cannot make the root of the container read-only
# while a process has its lock file open.
close_others() {
    local number
    for number in "/proc/${BASHPID}/fd/"*; do
        number=${number##*/}
        [[ ${number} -le 2 || " $* " == *" ${number} "* ]] || eval "exec ${number}>&-"
    done
}

# The daemon has written a line when files can be read.
archfs=$(command -v archfs) || archfs=/usr/local/bin/archfs
coproc DAEMON {
    exec 3>&1 > /dev/null
    close_others 3 "${fuse}"
    exec setsid "${archfs}" mount --quiet --foreground --ready-fd 3 -- "${archive}" "/dev/fd/${fuse}"
}
daemon=${DAEMON_PID}
if ! read -r -t 300 line <&"${DAEMON[0]}" || [ "${line}" != ready ]; then
    kill "${daemon}" 2> /dev/null || true
    exit 1
fi
# The daemon is in the mount namespace of the container and keeps it alive, so it must end with the container. Once
# it has, the kernel removes the namespace and the mount.
{
    close_others
    exec setsid bash -c 'tail --pid="$1" --sleep-interval=0.2 -f /dev/null; kill -KILL "$2"' \
        archfs "${ENROOT_PID}" "${daemon}"
} < /dev/null &> /dev/null &
disown -a
