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

/* A message of one byte with room for a descriptor. */
struct packet {
    char byte;
    struct iovec data;
    union control control;
    struct msghdr message;
};

static void prepare(struct packet *packet) {
    *packet = (struct packet){0};
    packet->data = (struct iovec){.iov_base = &packet->byte, .iov_len = 1};
    packet->message = (struct msghdr){
        .msg_iov = &packet->data,
        .msg_iovlen = 1,
        .msg_control = &packet->control,
        .msg_controllen = sizeof packet->control.space,
    };
}

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
    struct packet packet;
    prepare(&packet);
    struct cmsghdr *header = CMSG_FIRSTHDR(&packet.message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &namespace, sizeof(int));
    (void)sendmsg(end, &packet.message, MSG_NOSIGNAL);
    close(namespace);
}

int namespace_receive(int end) {
    struct packet packet;
    prepare(&packet);
    if (end < 0 || recvmsg(end, &packet.message, MSG_CMSG_CLOEXEC) < 0) {
        return -1;
    }
    struct cmsghdr *header = CMSG_FIRSTHDR(&packet.message);
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
