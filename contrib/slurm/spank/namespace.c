/* Passes the mount namespace of the tasks to slurmstepd.
 *
 * Plugins such as job_container/tmpfs put tasks into a mount namespace of their own. Mounts are
 * made there, so they must be unmounted there. slurmstepd is outside, and unmounts when the tasks
 * have ended. So a task sends it a descriptor of its namespace ahead.
 */
#define _GNU_SOURCE
#include "namespace.h"

#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define OWN "/proc/self/ns/mnt"

union control {
    struct cmsghdr header;
    char space[CMSG_SPACE(sizeof(int))];
};

void namespace_connect(int ends[2]) {
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
        ends[0] = ends[1] = -1;
    }
}

void namespace_send(int end) {
    int namespace = end < 0 ? -1 : open(OWN, O_RDONLY | O_CLOEXEC);
    if (namespace < 0) {
        return;
    }
    char byte = 0;
    struct iovec data = {.iov_base = &byte, .iov_len = 1};
    union control control = {0};
    struct msghdr message = {
        .msg_iov = &data,
        .msg_iovlen = 1,
        .msg_control = &control,
        .msg_controllen = sizeof control.space,
    };
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &namespace, sizeof(int));
    (void)sendmsg(end, &message, MSG_NOSIGNAL);
    close(namespace);
}

int namespace_receive(int end) {
    char byte;
    struct iovec data = {.iov_base = &byte, .iov_len = 1};
    union control control = {0};
    struct msghdr message = {
        .msg_iov = &data,
        .msg_iovlen = 1,
        .msg_control = &control,
        .msg_controllen = sizeof control.space,
    };
    if (end < 0 || recvmsg(end, &message, MSG_CMSG_CLOEXEC) < 0) {
        return -1;
    }
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header == NULL || header->cmsg_type != SCM_RIGHTS) {
        return -1;
    }
    int namespace;
    memcpy(&namespace, CMSG_DATA(header), sizeof(int));
    struct stat sent, own;
    if (fstat(namespace, &sent) != 0 || stat(OWN, &own) != 0 ||
        (sent.st_dev == own.st_dev && sent.st_ino == own.st_ino)) {
        close(namespace);
        return -1;
    }
    return namespace;
}
