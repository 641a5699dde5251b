/* The value of --archfs: which archives to mount, and where. */
#ifndef ARCHFS_MOUNTS_H
#define ARCHFS_MOUNTS_H

#include <stdbool.h>
#include <stddef.h>

#define MOUNTS_LIMIT 16
#define MOUNTS_TEXT_LIMIT 16384

struct mount {
    char *archive;
    /* An absolute path. Has %j, %s, %u and %% in it until mounts_expand. */
    char *mount_point;
    /* Whether each step has a mount point of its own, by %s. */
    bool is_per_step;
};

struct mounts {
    size_t count;
    struct mount items[MOUNTS_LIMIT];
};

/* What %j, %s and %u stand for. */
struct mounts_names {
    const char *job;
    const char *step;
    const char *user;
};

/* Parses ARCHIVE:MOUNTPOINT[,ARCHIVE:MOUNTPOINT]... into an empty list.
 * Returns NULL, or what is wrong; the list is empty then. */
const char *mounts_parse(struct mounts *mounts, const char *text);

/* Replaces %j, %s, %u and %%. Returns NULL, or what is wrong. */
const char *mounts_expand(struct mounts *mounts, const struct mounts_names *names);

void mounts_clear(struct mounts *mounts);

#endif
