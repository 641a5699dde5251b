/* The SPANK plugin: srun, sbatch and salloc --archfs=ARCHIVE:MOUNTPOINT.
 *
 * Where       Callback            What it does
 * srun, ...   option              checks the value
 * slurmstepd  init_post_opt       finds the user, and puts names into the mount points
 * task        task_init           runs `archfs mount` as the user, and exits if that fails
 * slurmstepd  task_exit           after the last task: runs `archfs unmount`
 * slurmstepd  exit                if that failed: runs `archfs gc`
 *
 * task_init runs in the process that becomes the task. That process has the user's rights, and is
 * in the task's control group and mount namespace, so the daemon is as well.
 *
 * The lease of a mount is slurmstepd's process ID. slurmstepd outlives the tasks, and Slurm kills
 * it neither at the end of a step nor when memory runs out. It ends the lease before Slurm kills
 * the processes of the step. If Slurm kills the daemon first, at a time limit, `archfs gc` clears
 * the stale mount. If slurmstepd itself is killed, the daemon notices and unmounts.
 *
 * In the script of a job with several nodes, `archfs mount --all-nodes` mounts by a step of the
 * job. The steps of the script then share that mount, even if they run at the same time.
 *
 * Slurm drains a node if some callbacks fail, so all of them except that of the option return 0.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pwd.h>
#include <slurm/slurm.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "command.h"
#include "mounts.h"
#include "namespace.h"

/* Slurm finds these names; all others stay inside the plugin. */
#pragma GCC visibility push(default)
#include <slurm/spank.h>
SPANK_PLUGIN(archfs, 1)
#pragma GCC visibility pop

/* The exit status of a task whose mount reached the time limit, as `archfs` has it. */
#define STATUS_TIMED_OUT 6
/* Seconds that unmounting and clearing may take. */
#define UNMOUNT_SECONDS 20
#define SITE_OPTIONS_LIMIT 32
/* In the environment of the step that mounts on all nodes. */
#define MOUNT_STEP "_ARCHFS_MOUNT_STEP"
/* Where sbatch and salloc leave the value for the srun of a script. */
#define OPTION_FOR_STEPS "SLURM_SPANK__SLURM_SPANK_OPTION_archfs_archfs"

/* From plugstack.conf. */
static struct {
    char *program;
    unsigned mount_seconds;
    /* Options of `archfs mount`. */
    char *options[SITE_OPTIONS_LIMIT];
    size_t option_count;
    const char *wrong;
} site = {.program = "/usr/local/bin/archfs", .mount_seconds = 300};

/* The step of this slurmstepd. */
static struct {
    struct user user;
    /* The process ID of slurmstepd, which is the lease. */
    pid_t process;
    struct mounts mounts;
    /* Why --archfs cannot be obeyed, or NULL. */
    const char *wrong;
    char node[256];
    uint32_t exited_tasks;
    int namespace_ends[2];
    /* The mount namespace of the tasks if it is another one, else -1. */
    int mount_namespace;
    bool needs_clearing;
} step = {.namespace_ends = {-1, -1}, .mount_namespace = -1};

static int take_option(int val, const char *value, int remote) {
    (void)val;
    mounts_clear(&step.mounts);
    step.wrong = mounts_parse(&step.mounts, value);
    /* On a node, task_init reports the error. */
    if (step.wrong == NULL || remote) {
        return 0;
    }
    slurm_error("--archfs: %s", step.wrong);
    return -1;
}

static struct spank_option option = {
    .name = "archfs",
    .arginfo = "ARCHIVE:MOUNTPOINT[,...]",
    .usage = "mount archives (SquashFS, tar, ZIP) for the tasks; "
             "%j, %u and %s in MOUNTPOINT are the job, user and step",
    .has_arg = 1,
    .cb = take_option,
};

static void read_site_options(int count, char **arguments) {
    for (int i = 0; i < count; i++) {
        char *value = strchr(arguments[i], '=');
        char *end;
        if (strncmp(arguments[i], "archfs=/", 8) == 0) {
            site.program = value + 1;
        } else if (strncmp(arguments[i], "timeout=", 8) == 0) {
            unsigned long seconds = strtoul(value + 1, &end, 10);
            if (*end != '\0' || seconds == 0 || seconds > 86400) {
                site.wrong = "timeout= must be 1 to 86400 seconds";
            } else {
                site.mount_seconds = (unsigned)seconds;
            }
        } else if (strncmp(arguments[i], "option=-", 8) == 0) {
            if (site.option_count == SITE_OPTIONS_LIMIT) {
                site.wrong = "more than 32 option=";
            } else {
                site.options[site.option_count++] = value + 1;
            }
        } else {
            site.wrong = "an argument is not archfs=/PATH, timeout=SECONDS or option=-...";
        }
    }
}

int slurm_spank_init(spank_t spank, int count, char **arguments) {
    if (spank_context() != S_CTX_LOCAL && spank_context() != S_CTX_ALLOCATOR &&
        spank_context() != S_CTX_REMOTE) {
        return 0;
    }
    read_site_options(count, arguments);
    if (spank_option_register(spank, &option) != ESPANK_SUCCESS) {
        slurm_error("archfs: cannot register --archfs");
    }
    return 0;
}

static void name_step(uint32_t id, char *name, size_t size) {
    switch (id) {
    case SLURM_BATCH_SCRIPT: snprintf(name, size, "batch"); break;
    case SLURM_INTERACTIVE_STEP: snprintf(name, size, "interactive"); break;
    default: snprintf(name, size, "%u", id); break;
    }
}

static void find_user(spank_t spank) {
    gid_t *groups = NULL;
    if (spank_get_item(spank, S_JOB_UID, &step.user.uid) != ESPANK_SUCCESS ||
        spank_get_item(spank, S_JOB_GID, &step.user.gid) != ESPANK_SUCCESS) {
        step.wrong = "Slurm does not name the user";
    }
    if (spank_get_item(spank, S_JOB_SUPPLEMENTARY_GIDS, &groups, &step.user.group_count) !=
        ESPANK_SUCCESS) {
        step.user.group_count = 0;
    }
    step.user.groups = groups;
}

static void expand_mount_points(spank_t spank) {
    uint32_t job = 0, id = 0;
    char job_name[16], step_name[16], user_name[256];
    if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS ||
        spank_get_item(spank, S_JOB_STEPID, &id) != ESPANK_SUCCESS) {
        step.wrong = "Slurm does not name the step";
        return;
    }
    snprintf(job_name, sizeof job_name, "%u", job);
    name_step(id, step_name, sizeof step_name);
    struct passwd entry, *found = NULL;
    char buffer[4096];
    if (getpwuid_r(step.user.uid, &entry, buffer, sizeof buffer, &found) == 0 && found != NULL &&
        strlen(found->pw_name) < sizeof user_name) {
        strcpy(user_name, found->pw_name);
    } else {
        snprintf(user_name, sizeof user_name, "%u", (unsigned)step.user.uid);
    }
    const struct mounts_names names = {.job = job_name, .step = step_name, .user = user_name};
    step.wrong = mounts_expand(&step.mounts, &names);
}

/* Before version 23.11, sbatch --export=NONE does not pass the options of plugins to the script. */
static void find_option_of_script(spank_t spank) {
    static char value[MOUNTS_TEXT_LIMIT + 2];
    uint32_t id = 0;
    if (step.mounts.count == 0 && step.wrong == NULL &&
        spank_get_item(spank, S_JOB_STEPID, &id) == ESPANK_SUCCESS && id == SLURM_BATCH_SCRIPT &&
        spank_getenv(spank, OPTION_FOR_STEPS, value, sizeof value) == ESPANK_SUCCESS) {
        take_option(0, value, 1);
    }
}

int slurm_spank_init_post_opt(spank_t spank, int count, char **arguments) {
    (void)count, (void)arguments;
    char value[8];
    if (spank_context() != S_CTX_REMOTE) {
        return 0;
    }
    find_option_of_script(spank);
    step.needs_clearing = spank_getenv(spank, MOUNT_STEP, value, sizeof value) == ESPANK_SUCCESS;
    if (step.mounts.count == 0 && step.wrong == NULL && !step.needs_clearing) {
        return 0;
    }
    step.process = getpid();
    find_user(spank);
    if (step.wrong == NULL) {
        expand_mount_points(spank);
    }
    if (step.wrong == NULL) {
        step.wrong = site.wrong;
    }
    namespace_connect(step.namespace_ends);
    return 0;
}

/* Ends a task that cannot have its files. The node is not at fault, so it is not drained. */
static void refuse_task(const char *object, const char *why, int status) {
    dprintf(STDERR_FILENO, "archfs[%s]: error: %s: %s\n", step.node, object, why);
    _exit(status);
}

/* Whether the job has several nodes and this is its script. */
static bool mounts_on_all_nodes(spank_t spank) {
    uint32_t id = 0;
    char nodes[16];
    return spank_get_item(spank, S_JOB_STEPID, &id) == ESPANK_SUCCESS &&
           id == SLURM_BATCH_SCRIPT &&
           spank_getenv(spank, "SLURM_JOB_NUM_NODES", nodes, sizeof nodes) == ESPANK_SUCCESS &&
           strtoul(nodes, NULL, 10) > 1;
}

/* Runs `archfs mount` in the process of a task; returns its exit status. */
static int run_mount(const struct mount *mount, char **environment, bool on_all_nodes,
                     bool shows_errors) {
    char lease[48];
    char *argv[SITE_OPTIONS_LIMIT + 10];
    size_t count = 0;
    argv[count++] = site.program;
    argv[count++] = "mount";
    argv[count++] = "--quiet";
    if (on_all_nodes) {
        argv[count++] = "--all-nodes";
    } else {
        snprintf(lease, sizeof lease, "--until-pid=%d", (int)step.process);
        argv[count++] = lease;
        argv[count++] = "--job-step=never";
    }
    for (size_t i = 0; i < site.option_count; i++) {
        argv[count++] = site.options[i];
    }
    argv[count++] = "--";
    argv[count++] = mount->archive;
    argv[count++] = mount->mount_point;
    argv[count] = NULL;
    const struct command command = {
        .argv = argv,
        .environment = environment,
        .user = step.user,
        .shows_errors = shows_errors,
        .has_job_limits = true,
        .mount_namespace = -1,
        .limit_seconds = site.mount_seconds,
    };
    return command_run(&command);
}

int slurm_spank_task_init(spank_t spank, int count, char **arguments) {
    (void)count, (void)arguments;
    int task = 0;
    char **environment = NULL;
    if (step.mounts.count == 0 && step.wrong == NULL) {
        return 0;
    }
    if (spank_getenv(spank, "SLURMD_NODENAME", step.node, sizeof step.node) != ESPANK_SUCCESS) {
        gethostname(step.node, sizeof step.node - 1);
    }
    if (step.wrong != NULL) {
        refuse_task("--archfs", step.wrong, 2);
    }
    spank_get_item(spank, S_TASK_ID, &task);
    if (task == 0) {
        namespace_send(step.namespace_ends[1]);
    }
    spank_setenv(spank, "ARCHFS_MOUNTPOINT", step.mounts.items[0].mount_point, 1);
    bool on_all_nodes = mounts_on_all_nodes(spank);
    if (on_all_nodes) {
        spank_setenv(spank, MOUNT_STEP, "1", 1);
    }
    for (size_t i = 0; i < step.mounts.count; i++) {
        const struct mount *mount = &step.mounts.items[i];
        if (spank_get_item(spank, S_JOB_ENV, &environment) != ESPANK_SUCCESS) {
            refuse_task("--archfs", "Slurm passes no environment", 1);
        }
        /* The tasks of a node have the same errors, so one of them prints its own. */
        int status = run_mount(mount, environment, on_all_nodes && !mount->is_per_step, task == 0);
        if (status == COMMAND_TIMED_OUT) {
            refuse_task(mount->archive, "not mounted within the time limit of the site",
                        STATUS_TIMED_OUT);
        }
        if (status != 0 && task == 0) {
            _exit(status);
        }
        if (status != 0) {
            refuse_task(mount->mount_point, "not mounted for another task of this node", status);
        }
    }
    spank_unsetenv(spank, MOUNT_STEP);
    return 0;
}

/* Runs `archfs WORDS` in slurmstepd; returns its exit status. This process is not in the control
 * group of the job. So it does not get the user's environment, which could make it run any
 * program. */
static int run_in_step(char *const *words) {
    char *argv[8] = {site.program};
    for (size_t i = 0; words[i] != NULL; i++) {
        argv[i + 1] = words[i];
    }
    char *environment[] = {"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", NULL};
    const struct command command = {
        .argv = argv,
        .environment = environment,
        .user = step.user,
        .shows_errors = false,
        .mount_namespace = step.mount_namespace,
        .limit_seconds = UNMOUNT_SECONDS,
    };
    int status = command_run(&command);
    slurm_verbose("archfs: %s: exit status %d", words[0], status);
    return status;
}

int slurm_spank_task_exit(spank_t spank, int count, char **arguments) {
    (void)count, (void)arguments;
    uint32_t tasks = 0;
    if (step.mounts.count == 0 || step.wrong != NULL) {
        return 0;
    }
    step.exited_tasks++;
    if (spank_get_item(spank, S_JOB_LOCAL_TASK_COUNT, &tasks) != ESPANK_SUCCESS ||
        step.exited_tasks < tasks) {
        return 0;
    }
    step.mount_namespace = namespace_receive(step.namespace_ends[0]);
    char lease[48];
    snprintf(lease, sizeof lease, "--held-by=%d", (int)step.process);
    for (size_t i = step.mounts.count; i > 0; i--) {
        char *words[] = {"unmount", lease, "--", step.mounts.items[i - 1].mount_point, NULL};
        step.needs_clearing |= run_in_step(words) != 0;
    }
    return 0;
}

int slurm_spank_exit(spank_t spank, int count, char **arguments) {
    (void)spank, (void)count, (void)arguments;
    if (spank_context() != S_CTX_REMOTE) {
        return 0;
    }
    if (step.needs_clearing) {
        /* Slurm has killed all processes of the step. */
        char *words[] = {"gc", "--quiet", NULL};
        run_in_step(words);
    }
    mounts_clear(&step.mounts);
    for (int i = 0; i < 2; i++) {
        if (step.namespace_ends[i] >= 0) {
            close(step.namespace_ends[i]);
        }
    }
    if (step.mount_namespace >= 0) {
        close(step.mount_namespace);
    }
    return 0;
}
