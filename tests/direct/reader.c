/*
 * Reads files in ways that are hard on the library that `archfs run --direct` preloads. test-library
 * runs it.
 *
 *   reader WAY FILE...
 *
 * A file consists of records of 8 bytes: the record's number (6 bytes), 'Z', and where the bytes come
 * from: 'M' for the mount, 'A' for the archive.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* From <linux/filter.h> and <linux/seccomp.h>, which musl-gcc does not find. */
struct instruction { uint16_t code; uint8_t if_true, if_false; uint32_t value; };
struct program { unsigned short length; struct instruction *instructions; };

/* Under musl the library alone has these. */
#ifdef __GLIBC__
ssize_t __read_chk(int, void *, size_t, size_t);
ssize_t __pread_chk(int, void *, size_t, off_t, size_t);
ssize_t __pread64_chk(int, void *, size_t, off_t, size_t);
ssize_t preadv2(int, const struct iovec *, int, off_t, int);
ssize_t preadv64v2(int, const struct iovec *, int, off_t, int);
#else
#define __read_chk(fd, bytes, count, size) read(fd, bytes, count)
#define __pread_chk(fd, bytes, count, offset, size) pread(fd, bytes, count, offset)
#define __pread64_chk(fd, bytes, count, offset, size) pread(fd, bytes, count, offset)
#define preadv2(fd, vectors, count, offset, flags) preadv(fd, vectors, count, offset)
#define preadv64v2(fd, vectors, count, offset, flags) preadv(fd, vectors, count, offset)
#define NO_PREADV2
#endif

static void fail(const char *what)
{
    printf("%s: %s\n", what, strerror(errno));
    fflush(stdout);
    _exit(2);
}

static int open_file(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        fail(path);
    return fd;
}

static unsigned char expected(uint64_t offset)
{
    uint64_t record = offset / 8, byte = offset % 8;
    return byte < 6 ? (unsigned char)(record >> 8 * byte) : 'Z';
}

/* '?' wrong bytes, '-' no record's last byte in there, 'X' both sources, else the source. */
static char source(const unsigned char *bytes, ssize_t count, uint64_t offset)
{
    char found = '-';
    for (ssize_t i = 0; i < count; i++) {
        if ((offset + i) % 8 != 7) {
            if (bytes[i] != expected(offset + i))
                return '?';
        } else if (bytes[i] != 'A' && bytes[i] != 'M') {
            return '?';
        } else {
            found = found == '-' || found == (char)bytes[i] ? (char)bytes[i] : 'X';
        }
    }
    return found;
}

static unsigned char space[1 << 20];

static void report(const char *name, ssize_t result, uint64_t offset)
{
    int error = errno;
    printf("%s %zd %s %c\n", name, result, result < 0 ? strerror(error) : error == 77 ? "kept" : "CHANGED",
           source(space, result, offset));
    memset(space, 0, sizeof space);
    errno = 77;
}

#define TRY(name, call, offset) (errno = 77, report(name, call, offset))

/* Every function once, on a file of at least 100,000 bytes. */
static void calls(const char *path)
{
    int fd = open_file(path);
    struct stat status;
    fstat(fd, &status);
    off_t size = status.st_size;
    struct iovec two[2] = { { space, 1000 }, { space + 1000, 3000 } };
    TRY("read", read(fd, space, 1000), 0);
    TRY("readv", readv(fd, two, 2), 1000);
    TRY("pread", pread(fd, space, 20000, 50), 50);
    TRY("preadv", preadv(fd, two, 2, 808), 808);
    TRY("preadv2", preadv2(fd, two, 2, 808, 0), 808);
    TRY("preadv64v2", preadv64v2(fd, two, 2, 808, 0), 808);
    TRY("__read_chk", __read_chk(fd, space, 1000, sizeof space), 5000);
    TRY("__pread_chk", __pread_chk(fd, space, 1000, 3, sizeof space), 3);
    TRY("__pread64_chk", __pread64_chk(fd, space, 1000, 3, sizeof space), 3);
    TRY("pread at the end", pread(fd, space, 1000, size - 10), size - 10);
    TRY("pread past the end", pread(fd, space, 1000, size), 0);
    TRY("pread far past the end", pread(fd, space, 1000, size * 3), 0);
    lseek(fd, size - 800, SEEK_SET);
    TRY("read at the end", read(fd, space, 1000), size - 800);
    TRY("read past the end", read(fd, space, 1000), 0);
    printf("position %d -\n", lseek(fd, 0, SEEK_CUR) == size);
    lseek(fd, size - 800, SEEK_SET);
    TRY("readv at the end", readv(fd, two, 2), size - 800);
    TRY("readv past the end", readv(fd, two, 2), 0);
    lseek(fd, 0, SEEK_SET);
    TRY("whole", read(fd, space, sizeof space), 0);
}

/* Calls that the mount answers, or that fail. */
static void odd(const char *path)
{
    int fd = open_file(path);
    struct iovec two[2] = { { space, 1000 }, { space + 1000, 3000 } };
    struct iovec bad[2] = { { space, 1000 }, { (void *)8, 3000 } };
    struct iovec negative[2] = { { space, 1000 }, { space, (size_t)-5 } };
    static struct iovec many[1025];
    /* The library maps its table at the first hit, which must not be in the hole. */
    TRY("hit first", pread(fd, space, 20000, 0), 0);
    char *page = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(page + 4096, 4096);
    TRY("read count 0", read(fd, space, 0), 0);
    TRY("pread count 0", pread(fd, space, 0, 0), 0);
    TRY("pread bad pointer", pread(fd, (void *)8, 20000, 0), 0);
    TRY("read bad pointer", read(fd, (void *)8, 20000), 0);
    printf("position %ld\n", (long)lseek(fd, 0, SEEK_CUR));
    ssize_t half = read(fd, page, 8192);
    memcpy(space, page, 4096);
    TRY("read half bad", half, 0);
    printf("position %ld\n", (long)lseek(fd, 0, SEEK_CUR));
    TRY("readv bad array", readv(fd, (void *)8, 2), 0);
    TRY("preadv bad array", preadv(fd, (void *)8, 2, 0), 0);
    TRY("readv array at unmapped page", readv(fd, (void *)(page + 4096), 2), 0);
    TRY("preadv bad base", preadv(fd, bad, 2, 0), 0);
    TRY("readv negative length", readv(fd, negative, 2), 0);
    TRY("readv 0 vectors", readv(fd, two, 0), 0);
    TRY("readv -1 vectors", readv(fd, two, -1), 0);
    TRY("readv 1025 vectors", readv(fd, many, 1025), 0);
    TRY("readv 1024 empty vectors", readv(fd, many, 1024), 0);
    TRY("pread negative offset", pread(fd, space, 20000, -1), 0);
    TRY("preadv negative offset", preadv(fd, two, 2, -5), 0);
#ifndef NO_PREADV2
    lseek(fd, 8, SEEK_SET);
    TRY("preadv2 at the position", preadv2(fd, two, 2, -1, 0), 8);
    TRY("preadv2 flags", preadv2(fd, two, 2, 0, 0x7fff0000), 0);
#endif
    lseek(fd, 0, SEEK_SET);
    void *huge = mmap(0, (size_t)1 << 32, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ssize_t result = read(fd, huge, (size_t)1 << 32);
    memcpy(space, huge, sizeof space);
    TRY("read of 4 GiB", result, 0);
    TRY("closed", read(-1, space, 20000), 0);
    TRY("number beyond", read(1 << 30, space, 20000), 0);
    int path_only = open(path, O_PATH);
    TRY("O_PATH read", read(path_only, space, 20000), 0);
    TRY("O_PATH pread", pread(path_only, space, 20000, 0), 0);
    TRY("directory", read(open("/", O_RDONLY), space, 20000), 0);
    int null = open("/dev/zero", O_RDONLY);
    TRY("device", read(null, space, 4) + space[0], 0);
}

/* Threads share one descriptor and read to the end. Each record must come exactly once. */
static int shared;
static int wrong, wrong_lengths, hits, misses;
static unsigned char *seen;
static uint64_t records;

static void *read_to_end(void *argument)
{
    unsigned seed = (unsigned)(uintptr_t)argument;
    unsigned char *bytes = malloc(1 << 18);
    struct iovec two[2];
    for (;;) {
        size_t wanted = 8 * (1 + rand_r(&seed) % 300), first = 8 * (rand_r(&seed) % (wanted / 8));
        two[0] = (struct iovec){ bytes, first };
        two[1] = (struct iovec){ bytes + first, wanted - first };
        ssize_t count = seed & 1 ? read(shared, bytes, wanted) : readv(shared, two, 2);
        if (count == 0)
            break;
        if (count < 0 || count % 8) {
            printf("result %zd %s\n", count, strerror(errno));
            wrong++;
            break;
        }
        uint64_t record = 0;
        memcpy(&record, bytes, 6);
        char from = source(bytes, count, record * 8);
        __atomic_add_fetch(from == 'A' ? &hits : from == 'M' ? &misses : &wrong, 1, __ATOMIC_RELAXED);
        for (ssize_t i = 0; i < count / 8 && record + i < records; i++)
            __atomic_add_fetch(&seen[record + i], 1, __ATOMIC_RELAXED);
    }
    free(bytes);
    return 0;
}

static void summary(void)
{
    printf("wrong %d hits %s misses %s\n", wrong + wrong_lengths, hits ? "yes" : "no", misses ? "yes" : "no");
}

static void threads(const char *path, int count, int cold)
{
    shared = open_file(path);
    struct stat status;
    fstat(shared, &status);
    records = (uint64_t)status.st_size / 8;
    seen = calloc(records, 1);
    if (!cold)
        (void)!pread(shared, space, 20000, 0); /* sets the mount up */
    pthread_t thread[16];
    for (int i = 0; i < count; i++)
        pthread_create(&thread[i], 0, read_to_end, (void *)(uintptr_t)(i + 1));
    for (int i = 0; i < count; i++)
        pthread_join(thread[i], 0);
    for (uint64_t i = 0; i < records; i++)
        if (seen[i] != 1)
            wrong++;
    summary();
}

/* Threads read while another closes and replaces every descriptor that is not theirs. */
static volatile int stop;
static int mine[8];

static void *read_at_random(void *argument)
{
    int number = (int)(uintptr_t)argument, fd = mine[number];
    unsigned seed = number + 1;
    unsigned char *bytes = malloc(1 << 16);
    struct stat status;
    fstat(fd, &status);
    while (!stop) {
        uint64_t offset = (uint64_t)rand_r(&seed) % (uint64_t)status.st_size;
        size_t wanted = 16384 + rand_r(&seed) % 32768; /* with and without readahead */
        ssize_t count;
        if (number % 2) {
            count = pread(fd, bytes, wanted, offset);
        } else {
            lseek(fd, offset, SEEK_SET);
            count = read(fd, bytes, wanted);
            if (lseek(fd, 0, SEEK_CUR) != (off_t)offset + count)
                __atomic_add_fetch(&wrong_lengths, 1, __ATOMIC_RELAXED);
        }
        ssize_t whole = (ssize_t)wanted < (ssize_t)(status.st_size - offset) ? (ssize_t)wanted
                                                                            : (ssize_t)(status.st_size - offset);
        char from = source(bytes, count, offset);
        __atomic_add_fetch(from == 'A' ? &hits : from == 'M' ? &misses : &wrong, 1, __ATOMIC_RELAXED);
        if (count != whole)
            __atomic_add_fetch(&wrong_lengths, 1, __ATOMIC_RELAXED);
    }
    free(bytes);
    return 0;
}

static void *close_all(void *argument)
{
    const char *decoy_path = argument;
    unsigned seed = 7;
    int decoy = dup2(open_file(decoy_path), 40), pipes[2];
    if (pipe(pipes))
        fail("pipe");
    while (!stop) {
        for (int fd = 3; fd < 1020; fd++) {
            int skip = fd == 40 || fd == pipes[0] || fd == pipes[1] || (fd > 50 && fd < 995);
            for (int i = 0; i < 4; i++)
                skip |= fd == mine[i];
            if (skip)
                continue;
            switch (rand_r(&seed) % 8) {
            case 0: dup2(decoy, fd); break;
            case 1: dup2(fd < 60 ? pipes[0] : decoy, fd); break;
            case 2: case 3: close(fd); break;
            }
        }
        /* Time for the library to fetch a descriptor again. */
        usleep(rand_r(&seed) % 1000);
    }
    return 0;
}

static void closing(const char *path, const char *decoy, int milliseconds)
{
    pthread_t thread[5];
    for (int i = 0; i < 4; i++)
        mine[i] = open_file(path);
    (void)!pread(mine[0], space, 20000, 0); /* sets the mount up */
    pthread_create(&thread[4], 0, close_all, (void *)decoy);
    for (int i = 0; i < 4; i++)
        pthread_create(&thread[i], 0, read_at_random, (void *)(uintptr_t)i);
    usleep(milliseconds * 1000);
    stop = 1;
    for (int i = 0; i < 5; i++)
        pthread_join(thread[i], 0);
    printf("wrong lengths %d\n", wrong_lengths);
    summary();
}

/* Closes all unknown descriptors, as daemons do, between reads. */
static void close_from(const char *path)
{
    int fd = open_file(path);
    for (int round = 0; round < 40; round++) {
        size_t wanted = round % 2 ? 40000 : 20000; /* without and with readahead */
        TRY(round < 16 ? "early" : "late", pread(fd, space, wanted, 0), 0);
        for (int other = 3; other < 1100; other++)
            if (other != fd)
                close(other);
    }
}

/* A filter that kills the process at statx. */
static void filtered(const char *path, const char *how)
{
    int fd = open_file(path);
    TRY("before", pread(fd, space, 20000, 0), 0);
    struct instruction list[] = {
        { 0x20, 0, 0, 0 },                    /* load the number of the call */
        { 0x15, 0, 1, SYS_statx },            /* skip one unless it is statx */
        { 0x06, 0, 0, 0x80000000 },           /* kill the process */
        { 0x06, 0, 0, 0x7fff0000 },           /* allow */
    };
    struct program filter = { 4, list };
    int result;
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (!strcmp(how, "prctl"))
        result = prctl(22, 2, &filter);
    else if (!strcmp(how, "syscall"))
        result = (int)syscall(SYS_seccomp, 1, 0, &filter);
    else if (!strcmp(how, "syscall-prctl"))
        result = (int)syscall(SYS_prctl, 22, 2, &filter);
    else
        result = prctl(22, 1);
    if (result)
        fail(how);
    ssize_t count = read(fd, space, 20000);
    char text[] = "after 00000 ?\n";
    for (int i = 10, rest = (int)count; i > 5; i--, rest /= 10)
        text[i] = (char)('0' + rest % 10);
    text[12] = source(space, count, 0);
    fflush(stdout);
    syscall(SYS_write, 1, text, sizeof text - 1);
    syscall(SYS_exit, 0);
}

/* Cancels a thread that reads the file, and one that waits for a pipe. */
static int cleaned, pipe_ends[2];

static void note(void *argument)
{
    (void)argument;
    __atomic_add_fetch(&cleaned, 1, __ATOMIC_RELAXED);
}

static void *read_forever(void *argument)
{
    static unsigned char bytes[2][30000];
    int which = (int)(uintptr_t)argument;
    pthread_cleanup_push(note, 0);
    for (;;) {
        if (which == 2)
            (void)!read(pipe_ends[0], bytes[0], 10);
        else if (which == 1)
            (void)!pread(shared, bytes[1], 30000, 0);
        else if (read(shared, bytes[0], 30000) == 0)
            while (lseek(shared, 0, SEEK_SET) != 0);
    }
    pthread_cleanup_pop(0);
    return 0;
}

static void canceled(const char *path)
{
    shared = open_file(path);
    if (pipe(pipe_ends))
        fail("pipe");
    for (int round = 0; round < 30; round++)
        for (uintptr_t which = 0; which < 3; which++) {
            pthread_t thread;
            void *result;
            pthread_create(&thread, 0, read_forever, (void *)which);
            usleep(2000);
            pthread_cancel(thread);
            pthread_join(thread, &result);
            if (result != PTHREAD_CANCELED)
                wrong++;
        }
    printf("wrong %d cleaned %d\n", wrong, cleaned);
}

/* The wrapped variadic functions pass on all arguments. */
static void variadic(void)
{
    errno = 77;
    char *page = (char *)syscall(SYS_mmap, 0, 4096, PROT_READ, MAP_PRIVATE, open_file("/proc/self/exe"), 0L);
    printf("mmap %d errno %d\n", page != MAP_FAILED && page[1] == 'E', errno);
    char *refused = (char *)syscall(SYS_mmap, 0, 4096, PROT_READ, MAP_PRIVATE, open_file("/proc/self/exe"), 1L);
    printf("mmap sixth %d\n", refused == MAP_FAILED && errno == EINVAL);
    errno = 0;
    long result = syscall(SYS_close, -1);
    printf("close %ld %d\n", result, errno == EBADF);
    char name[16] = "";
    prctl(PR_SET_NAME, "a-name");
    prctl(PR_GET_NAME, name);
    printf("name %s\n", name);
    printf("fifth %d", prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 1));
    printf(" %d", errno == EINVAL);
    printf(" %d\n", prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
}

/* A handler that reads interrupts reads. */
static int handler_fd, handler_runs;

static void handler(int number)
{
    (void)number;
    unsigned char bytes[2000];
    int error = errno;
    char from = source(bytes, pread(handler_fd, bytes, 2000, 160), 160);
    if (from != 'A' && from != 'M')
        wrong++;
    handler_runs++;
    errno = error;
}

static void signals(const char *path)
{
    handler_fd = open_file(path);
    shared = open_file(path);
    struct stat status;
    fstat(shared, &status);
    struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART | SA_ONSTACK };
    stack_t stack = { .ss_sp = malloc(16384), .ss_size = 16384 };
    sigaltstack(&stack, 0);
    sigaction(SIGALRM, &action, 0);
    struct itimerval often = { { 0, 50 }, { 0, 50 } };
    setitimer(ITIMER_REAL, &often, 0);
    time_t end = time(0) + 2;
    while (time(0) < end) {
        off_t offset = 0;
        lseek(shared, 0, SEEK_SET);
        for (ssize_t count; (count = read(shared, space, 30000)) > 0; offset += count) {
            char from = source(space, count, offset);
            __atomic_add_fetch(from == 'A' ? &hits : from == 'M' ? &misses : &wrong, 1, __ATOMIC_RELAXED);
        }
        if (offset != status.st_size)
            wrong++;
    }
    setitimer(ITIMER_REAL, &(struct itimerval){ 0 }, 0);
    summary();
    if (handler_runs < 100)
        printf("few signals: %d\n", handler_runs);
}

/* Children share the position and inherit the descriptors. */
static void children(const char *path)
{
    int fd = open_file(path);
    TRY("parent", read(fd, space, 800), 0);
    fflush(stdout);
    if (fork() == 0) {
        TRY("fork", read(fd, space, 8000), 800);
        fflush(stdout);
        _exit(0);
    }
    wait(0);
    if (vfork() == 0) {
        for (int other = 3; other < 1100; other++)
            if (other != fd)
                close(other);
        TRY("vfork", read(fd, space, 8000), 8800);
        fflush(stdout);
        _exit(0);
    }
    wait(0);
    TRY("parent again", read(fd, space, 8000), 16800);
}

static void limits(const char *path, int resource, long value)
{
    int fd = open_file(path);
    struct rlimit limit = { value, value };
    setrlimit(resource, &limit);
    TRY("limited", pread(fd, space, 20000, 0), 0);
}

/* Reads each file once, or the first again and again. */
static void once(int count, char **paths)
{
    for (int i = 0; i < count; i++) {
        int fd = open_file(paths[i]);
        TRY("once", pread(fd, space, 20000, 0), 0);
        close(fd);
    }
}

static void repeat(const char *path, int times, int pause)
{
    int fd = open_file(path);
    char from[256] = "";
    for (int i = 0; i < times; i++) {
        from[i] = source(space, pread(fd, space, 20000, 0), 0);
        usleep(pause * 1000);
    }
    puts(from);
}

/* Reads once at each line of the standard input. */
static void stepwise(const char *path)
{
    int fd = open_file(path), c;
    while ((c = getchar()) != EOF)
        if (c == '\n') {
            TRY("step", pread(fd, space, 20000, 0), 0);
            fflush(stdout);
        }
}

static void small(const char *path, const char *other, int times)
{
    int fd = open_file(path), stranger = open_file(other);
    TRY("hit", pread(fd, space, 20000, 0), 0);
    for (int i = 0; i < times; i++)
        if (pread(stranger, space, 100, 0) < 0)
            fail(other);
}

/* Random calls, each compared with what a regular file of this size gives. */
static void random_calls(const char *path, unsigned seed)
{
    int fd = open_file(path), second = dup(fd);
    struct stat status;
    fstat(fd, &status);
    int64_t size = status.st_size, position = 0;
    for (int call = 0; call < 60000; call++) {
        struct iovec vectors[9];
        int count = 1 + rand_r(&seed) % 9, length_bits = rand_r(&seed) % 17;
        int64_t total = 0, from = rand_r(&seed) % 4 ? rand_r(&seed) % size : size - 500 + rand_r(&seed) % 1000;
        for (int i = 0; i < count; i++) {
            size_t length = (size_t)rand_r(&seed) % (1 << length_bits);
            vectors[i] = (struct iovec){ space + total, length };
            total += length;
        }
        int way = rand_r(&seed) % 8, which = rand_r(&seed) % 2 ? fd : second, moves = 1;
        ssize_t result = 0;
        switch (way) {
        case 0: case 1: result = read(which, space, total); break;
        case 2: case 3: result = readv(which, vectors, count); break;
        case 4: result = pread(which, space, total, from); moves = 0; break;
        case 5: result = preadv(which, vectors, count, from); moves = 0; break;
        case 6: position = lseek(fd, from, SEEK_SET); continue;
        case 7:
            if (rand_r(&seed) % 100 == 0) {
                for (int other = 3; other < 1050; other++)
                    if (other != fd && other != second)
                        close(other);
            } else if (rand_r(&seed) % 100 == 0) {
                close(fd);
                fd = open_file(path);
                close(second);
                second = dup(fd);
                position = 0;
            }
            continue;
        }
        int64_t start = moves ? position : from;
        int64_t wanted = start >= size ? 0 : total < size - start ? total : size - start;
        char where = source(space, result, start);
        if (result != wanted || where == '?') {
            printf("call %d way %d: %zd bytes, wanted %ld at %ld, from %c\n", call, way, result, (long)wanted,
                   (long)start, where);
            wrong++;
        }
        where == 'A' ? hits++ : where == 'M' ? misses++ : 0;
        if (moves)
            position += result;
        if (lseek(fd, 0, SEEK_CUR) != position) {
            printf("call %d way %d: position\n", call, way);
            wrong++;
            position = lseek(fd, 0, SEEK_CUR);
        }
        memset(space, 0, (size_t)total);
    }
    summary();
}

/* Runs a program under a filter that fails statx with an error: "without-statx ERROR PROGRAM...". */
static void without_statx(int error, char **program)
{
    struct instruction list[] = {
        { 0x20, 0, 0, 0 },
        { 0x15, 0, 1, SYS_statx },
        { 0x06, 0, 0, 0x00050000 | (uint32_t)error },
        { 0x06, 0, 0, 0x7fff0000 },
    };
    struct program filter = { 4, list };
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(22, 2, &filter))
        fail("filter");
    execvp(program[0], program);
    fail(program[0]);
}

/* Microseconds of processor time a call: "time FILE COUNT BYTES". */
static void timed(const char *path, int times, size_t bytes)
{
    int fd = open_file(path);
    struct timespec from, to;
    double best = 1e9;
    for (int round = 0; round < 30; round++) {
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
        for (int i = 0; i < times; i++)
            if (pread(fd, space, bytes, 0) < 0)
                fail(path);
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
        double took = ((to.tv_sec - from.tv_sec) * 1e6 + (to.tv_nsec - from.tv_nsec) / 1e3) / times;
        best = took < best ? took : best;
    }
    printf("%.3f %c\n", best, source(space, 8, 0));
}

int main(int count, char **words)
{
    if (count < 2)
        return 2;
    const char *way = words[1], *path = words[2];
#define WAY(name) else if (!strcmp(way, name))
    if (!strcmp(way, "calls"))
        calls(path);
    WAY("odd") odd(path);
    WAY("threads") threads(path, atoi(words[3]), count > 4);
    WAY("closing") closing(path, words[3], atoi(words[4]));
    WAY("close-from") close_from(path);
    WAY("filtered") filtered(path, words[3]);
    WAY("canceled") canceled(path);
    WAY("variadic") variadic();
    WAY("signals") signals(path);
    WAY("children") children(path);
    WAY("few-files") limits(path, RLIMIT_NOFILE, 64);
    WAY("little-memory") limits(path, RLIMIT_AS, 256 << 20);
    WAY("once") once(count - 2, words + 2);
    WAY("repeat") repeat(path, atoi(words[3]), atoi(words[4]));
    WAY("stepwise") stepwise(path);
    WAY("small") small(path, words[3], atoi(words[4]));
    WAY("random") random_calls(path, (unsigned)atoi(words[3]));
    WAY("without-statx") without_statx(atoi(path), words + 3);
    WAY("time") timed(path, atoi(words[3]), (size_t)atol(words[4]));
    else return 2;
    return 0;
}
