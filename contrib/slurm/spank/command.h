/* Runs a program as the user of a job, with a time limit. */
#ifndef ARCHFS_COMMAND_H
#define ARCHFS_COMMAND_H

#include <stdbool.h>
#include <sys/types.h>

/* The command reached its time limit. No exit status has this value. */
#define COMMAND_TIMED_OUT 256
/* The exit status of a command that cannot be started, as a shell has it. */
#define COMMAND_NOT_STARTED 127

struct user {
    uid_t uid;
    gid_t gid;
    const gid_t *groups;
    int group_count;
};

struct command {
    /* argv[0] is an absolute path. */
    char *const *argv;
    char *const *environment;
    struct user user;
    /* Whether the caller's standard error shows messages; /dev/null otherwise. */
    bool shows_errors;
    /* Whether to set the soft resource limits that Slurm passes in the environment. */
    bool has_job_limits;
    /* A mount namespace to enter first, or -1. */
    int mount_namespace;
    unsigned limit_seconds;
};

/* Runs `command` and returns its exit status, 128 + N if signal N ended it, or
 * COMMAND_TIMED_OUT. */
int command_run(const struct command *command);

#endif
