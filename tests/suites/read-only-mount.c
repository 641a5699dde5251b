/* Makes the Linux Test Project examine a read-only archfs. To be preloaded into its programs.
 *
 * They mount a tmpfs, put files there, and mount it again, read-only. Here this second mount calls
 * $READ_ONLY_MOUNT DIRECTORY instead, which puts an archive of these files in their place. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int mount_function(const char *, const char *, const char *, unsigned long, const void *);

int mount(const char *source, const char *target, const char *type, unsigned long flags, const void *data)
{
    mount_function *next = (mount_function *)dlsym(RTLD_NEXT, "mount");
    const char *command = getenv("READ_ONLY_MOUNT");
    int status;
    pid_t child;

    if (command == NULL || (flags & (MS_REMOUNT | MS_RDONLY | MS_BIND)) != (MS_REMOUNT | MS_RDONLY))
        return next(source, target, type, flags, data);
    child = fork();
    if (child == 0) {
        unsetenv("LD_PRELOAD");
        execl(command, command, target, NULL);
        _exit(127);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        return -1;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    errno = EIO;
    return -1;
}
