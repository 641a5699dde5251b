/* Starts archfs with the rights of the user, and waits for it.
 *
 * slurmstepd has threads, so between fork and exec the child calls only functions that are
 * async-signal-safe. All that needs memory is done before fork.
 */
#define _GNU_SOURCE
#include "command.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Between SIGTERM and SIGKILL at the time limit. */
#define TERM_SECONDS 5

static const struct {
    const char *variable;
    int resource;
} limits[] = {
    {"SLURM_RLIMIT_CPU=", RLIMIT_CPU},       {"SLURM_RLIMIT_FSIZE=", RLIMIT_FSIZE},
    {"SLURM_RLIMIT_DATA=", RLIMIT_DATA},     {"SLURM_RLIMIT_STACK=", RLIMIT_STACK},
    {"SLURM_RLIMIT_CORE=", RLIMIT_CORE},     {"SLURM_RLIMIT_RSS=", RLIMIT_RSS},
    {"SLURM_RLIMIT_NPROC=", RLIMIT_NPROC},   {"SLURM_RLIMIT_NOFILE=", RLIMIT_NOFILE},
    {"SLURM_RLIMIT_MEMLOCK=", RLIMIT_MEMLOCK}, {"SLURM_RLIMIT_AS=", RLIMIT_AS},
};

static void fail(const char *what, const char *object) {
    int number = errno;
#if __GLIBC_PREREQ(2, 32)
    const char *why = strerrordesc_np(number);
#else
    /* Not async-signal-safe, because it may translate. */
    const char *why = strerror(number);
#endif
    const char *parts[] = {"archfs: error: ", object, ": ", what, why == NULL ? "" : why, "\n"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (write(STDERR_FILENO, parts[i], strlen(parts[i])) < 0) {
            break;
        }
    }
    _exit(COMMAND_NOT_STARTED);
}

/* Slurm sets these limits later, just before it starts the task. */
static void set_job_limits(char *const *environment) {
    for (; *environment != NULL; environment++) {
        for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
            size_t length = strlen(limits[i].variable);
            struct rlimit limit;
            if (strncmp(*environment, limits[i].variable, length) != 0 ||
                getrlimit(limits[i].resource, &limit) != 0) {
                continue;
            }
            /* An unlimited value is the largest number. */
            rlim_t value = strtoull(*environment + length, NULL, 10);
            limit.rlim_cur = value < limit.rlim_max ? value : limit.rlim_max;
            setrlimit(limits[i].resource, &limit);
        }
    }
}

/* Gives up root's rights for good. */
static void become(const struct user *user) {
    uid_t real, effective, saved;
    if (geteuid() == 0 &&
        (setgroups((size_t)user->group_count, user->groups) != 0 ||
         setresgid(user->gid, user->gid, user->gid) != 0 ||
         setresuid(user->uid, user->uid, user->uid) != 0)) {
        fail("cannot become the user: ", "plugin of Slurm");
    }
    if (getresuid(&real, &effective, &saved) != 0 || real != user->uid ||
        effective != user->uid || saved != user->uid) {
        errno = EPERM;
        fail("cannot become the user: ", "plugin of Slurm");
    }
}

/* slurmstepd has descriptors that the user must not get. */
static void close_descriptors(void) {
#ifdef SYS_close_range
    if (syscall(SYS_close_range, 3u, ~0u, 0u) == 0) {
        return;
    }
#endif
    for (int descriptor = 3; descriptor < 65536; descriptor++) {
        close(descriptor);
    }
}

/* slurmstepd is exempt from being killed when memory runs out; the user's process is not. */
static void reset_oom_score(void) {
    int file = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (file < 0 || write(file, "0", 1) < 0) {
        return;
    }
    close(file);
}

static void start(const struct command *command) {
    /* A process group of its own, so that it can be ended with its children. */
    setpgid(0, 0);
    /* slurmstepd ignores and blocks signals. */
    struct sigaction action = {.sa_handler = SIG_DFL};
    for (int number = 1; number < NSIG; number++) {
        sigaction(number, &action, NULL);
    }
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (command->mount_namespace >= 0 && setns(command->mount_namespace, CLONE_NEWNS) != 0) {
        fail("cannot enter the mount namespace of the job: ", "plugin of Slurm");
    }
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(null, STDOUT_FILENO) < 0 ||
        (!command->shows_errors && dup2(null, STDERR_FILENO) < 0)) {
        fail("", "/dev/null");
    }
    reset_oom_score();
    close_descriptors();
    if (command->has_job_limits) {
        set_job_limits(command->environment);
    }
    become(&command->user);
    execve(command->argv[0], command->argv, command->environment);
    fail("", command->argv[0]);
}

/* Waits until `deadline` for the process to exit. Polls, because a wait with a time limit would
 * need SIGCHLD, which belongs to slurmstepd. */
static bool has_exited(pid_t pid, const struct timespec *deadline, int *status) {
    long pause = 1000 * 1000;
    for (;;) {
        pid_t found = waitpid(pid, status, WNOHANG);
        if (found == pid) {
            return true;
        }
        if (found < 0 && errno != EINTR) {
            *status = COMMAND_NOT_STARTED << 8;
            return true;
        }
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec > deadline->tv_sec ||
            (now.tv_sec == deadline->tv_sec && now.tv_nsec >= deadline->tv_nsec)) {
            return false;
        }
        nanosleep(&(struct timespec){.tv_nsec = pause}, NULL);
        if (pause < 50 * 1000 * 1000) {
            pause *= 2;
        }
    }
}

static struct timespec seconds_from_now(unsigned seconds) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    time.tv_sec += (time_t)seconds;
    return time;
}

int command_run(const struct command *command) {
    pid_t pid = fork();
    if (pid < 0) {
        if (command->shows_errors) {
            dprintf(STDERR_FILENO, "archfs: error: cannot start a process: %m\n");
        }
        return COMMAND_NOT_STARTED;
    }
    if (pid == 0) {
        start(command);
    }
    int status;
    struct timespec deadline = seconds_from_now(command->limit_seconds);
    if (!has_exited(pid, &deadline, &status)) {
        kill(-pid, SIGTERM);
        deadline = seconds_from_now(TERM_SECONDS);
        if (!has_exited(pid, &deadline, &status)) {
            kill(-pid, SIGKILL);
            deadline = seconds_from_now(TERM_SECONDS);
            /* A process in an uninterruptible wait stays; slurmstepd reaps it later. */
            (void)has_exited(pid, &deadline, &status);
        }
        return COMMAND_TIMED_OUT;
    }
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}
