/*
 * The library that `archfs run --direct` preloads.
 *
 * It answers read calls of files that lie uncompressed in an archive by reading the archive itself,
 * without a request to the daemon, and isatty calls of regular files. Everything else stays with the
 * mount: open, stat, seek, close, every error, and every file or call that this library is not sure
 * about.
 *
 * It is freestanding: it needs no other library, so that it loads under any glibc and under musl.
 * It takes no lock, allocates nothing and has no thread-local data. It may run in a signal handler,
 * in a child after fork or vfork, and in any thread.
 *
 * build.rs compiles it, and has the flags. "-z defs" makes the link fail if the compiler adds a
 * reference to another library. The unwind tables are needed because glibc unwinds the stack of a
 * thread that is canceled in a read. With "-z noseparate-code" the library needs fewer mappings,
 * which makes each exec about 20 us faster.
 *
 * Tests: tests/direct/test-library.
 */
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
#define WEAK __attribute__((weak, visibility("default")))

typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t i64;
typedef long ssize;

/* All that the library uses of libc. Each may be missing, and is null then. */
extern void *dlsym(void *, const char *) WEAK;
extern char **environ WEAK;
extern int *__errno_location(void) WEAK;
extern void pthread_testcancel(void) WEAK;
extern void __chk_fail(void) WEAK;
/* glibc's own names of read and pread64. Before glibc 2.34, dlsym is missing unless libdl is loaded. */
extern ssize __read(int, void *, size_t) WEAK;
extern ssize __pread64(int, void *, size_t, i64) WEAK;

/* ------------------------------------------------------------------------------------------------
 * System calls: kernel numbers, structures and constants
 * ------------------------------------------------------------------------------------------------ */

#if defined __x86_64__ && defined __LP64__
enum {
    NR_READ = 0, NR_WRITE = 1, NR_CLOSE = 3, NR_LSEEK = 8, NR_MMAP = 9, NR_MUNMAP = 11,
    NR_IOCTL = 16, NR_PREAD64 = 17, NR_READV = 19, NR_GETPID = 39, NR_SOCKET = 41, NR_CONNECT = 42, NR_SENDTO = 44,
    NR_RECVMSG = 47, NR_GETSOCKOPT = 55, NR_FCNTL = 72, NR_GETEUID = 107, NR_PRCTL = 157,
    NR_GETTID = 186, NR_FADVISE64 = 221, NR_CLOCK_GETTIME = 228, NR_TGKILL = 234, NR_OPENAT = 257, NR_READLINKAT = 267,
    NR_PPOLL = 271, NR_PREADV = 295, NR_PRLIMIT64 = 302, NR_SECCOMP = 317, NR_PREADV2 = 327, NR_STATX = 332,
};

static inline long call6(long number, long a, long b, long c, long d, long e, long f)
{
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
#elif defined __aarch64__ && defined __LP64__ && !defined __AARCH64EB__
enum {
    NR_FCNTL = 25, NR_IOCTL = 29, NR_OPENAT = 56, NR_CLOSE = 57, NR_LSEEK = 62, NR_READ = 63, NR_WRITE = 64,
    NR_READV = 65, NR_PREAD64 = 67, NR_PREADV = 69, NR_PPOLL = 73, NR_READLINKAT = 78,
    NR_CLOCK_GETTIME = 113, NR_TGKILL = 131, NR_PRCTL = 167, NR_GETPID = 172, NR_GETEUID = 175,
    NR_GETTID = 178, NR_SOCKET = 198, NR_CONNECT = 203, NR_SENDTO = 206, NR_GETSOCKOPT = 209,
    NR_RECVMSG = 212, NR_MUNMAP = 215, NR_MMAP = 222, NR_FADVISE64 = 223, NR_PRLIMIT64 = 261, NR_SECCOMP = 277,
    NR_PREADV2 = 286, NR_STATX = 291,
};

static inline long call6(long number, long a, long b, long c, long d, long e, long f)
{
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc 0"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory", "cc");
    return x0;
}
#else
#error "archfs run --direct supports x86_64 and aarch64 (little endian, 64 bits)"
#endif

/* A system call with one to six arguments. Returns the result, or -errno. */
#define CALL(number, ...) CALL_WITH(number, __VA_ARGS__, 0, 0, 0, 0, 0, 0)
#define CALL_WITH(number, a, b, c, d, e, f, ...) \
    call6(number, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

enum {
    ERROR_PERMISSION = 1, ERROR_INTERRUPTED = 4, ERROR_AGAIN = 11, ERROR_NO_CALL = 38,
};

struct vector { /* struct iovec */
    char *base;
    size_t length;
};

struct time {
    i64 seconds;
    i64 nanoseconds;
};

struct status { /* struct statx */
    u32 mask, block_size;
    u64 attributes;
    u32 links, user, group;
    uint16_t mode, spare1;
    u64 inode, size, blocks, attributes_mask;
    struct { i64 seconds; u32 nanoseconds; u32 spare; } access, birth, change, modification;
    u32 special_major, special_minor, device_major, device_minor;
    u64 mount_id, spare2[13];
};
_Static_assert(sizeof(struct status) == 256, "struct statx has 256 bytes");

/* AT_STATX_DONT_SYNC: a network or FUSE file system answers from memory. 0: it may ask its server. */
enum sync { MAY_SYNC = 0, DO_NOT_SYNC = 0x4000 };

/* statx of a descriptor. Returns 0, -errno, or 1 if the file system does not know all that is wanted. */
static long status_of(int fd, struct status *status, enum sync sync)
{
    enum { EMPTY_PATH = 0x1000, TYPE = 1, MODIFICATION = 0x40, CHANGE = 0x80, INODE = 0x100, SIZE = 0x200 };
    enum { WANTED = TYPE | MODIFICATION | CHANGE | INODE | SIZE };

    long result = CALL(NR_STATX, fd, "", EMPTY_PATH | sync, WANTED, status);
    return result == 0 && (status->mask & WANTED) != WANTED ? 1 : result;
}

static int is_regular(const struct status *status)
{
    return (status->mode & 0170000) == 0100000;
}

/* st_dev, as makedev(3) encodes it. */
static u64 device_of(const struct status *status)
{
    u64 major = status->device_major, minor = status->device_minor;
    return (major & 0xfffff000) << 32 | (major & 0xfff) << 8 | (minor & 0xffffff00) << 12 | (minor & 0xff);
}

static i64 seek_by(int fd, i64 distance)
{
    enum { FROM_CURRENT = 1 };
    return CALL(NR_LSEEK, fd, distance, FROM_CURRENT);
}

static void close_descriptor(int fd)
{
    CALL(NR_CLOSE, fd);
}

/* A clock in milliseconds. */
static i64 now(void)
{
    enum { MONOTONIC_COARSE = 6 };
    struct time time = { 0, 0 };
    CALL(NR_CLOCK_GETTIME, MONOTONIC_COARSE, &time);
    return time.seconds * 1000 + time.nanoseconds / 1000000;
}

static u64 smaller(u64 a, u64 b)
{
    return a < b ? a : b;
}

static int equal(const char *a, const char *b, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (a[i] != b[i])
            return 0;
    return 1;
}

static size_t append(char *line, size_t length, const char *text)
{
    while (*text)
        line[length++] = *text++;
    line[length] = 0;
    return length;
}

static size_t append_number(char *line, size_t length, u64 number)
{
    char digits[24];
    size_t first = sizeof digits - 1;
    digits[first] = 0;
    do
        digits[--first] = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    return append(line, length, digits + first);
}

/* Writes the link that names a descriptor's file. It needs 32 bytes. */
static void descriptor_link(char *link, int fd)
{
    append_number(link, append(link, 0, "/proc/self/fd/"), (u64)fd);
}

/* Compilers call these two by themselves. The empty assembly keeps them from calling themselves. */
__attribute__((used)) void *memset(void *to, int value, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        ((char *)to)[i] = (char)value;
        __asm__ volatile("" ::: "memory");
    }
    return to;
}

__attribute__((used)) void *memcpy(void *restrict to, const void *restrict from, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        ((char *)to)[i] = ((const char *)from)[i];
        __asm__ volatile("" ::: "memory");
    }
    return to;
}

#define LOAD(pointer) __atomic_load_n(pointer, __ATOMIC_ACQUIRE)
#define STORE(pointer, value) __atomic_store_n(pointer, value, __ATOMIC_RELEASE)

/*
 * Sets *word to `to` if it is `from`. Returns whether it did. On aarch64 it is assembly because gcc's
 * builtin calls a function of libgcc, which this library cannot link.
 */
static int swap(u64 *word, u64 from, u64 to)
{
#if defined __aarch64__
    u64 seen;
    u32 failed;
    __asm__ volatile("1: ldaxr %0, [%2]\n\tcmp %0, %3\n\tb.ne 2f\n\tstlxr %w1, %4, [%2]\n\tcbnz %w1, 1b\n2:"
                     : "=&r"(seen), "=&r"(failed)
                     : "r"(word), "r"(from), "r"(to)
                     : "memory", "cc");
    return seen == from;
#else
    return __atomic_compare_exchange_n(word, &from, to, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
#endif
}

static void add(u64 *word, u64 amount)
{
    u64 before;
    do
        before = LOAD(word);
    while (!swap(word, before, before + amount));
}

/* ------------------------------------------------------------------------------------------------
 * Mounts from the environment
 * ------------------------------------------------------------------------------------------------ */

enum { MOUNTS = 8, FILES = 16, SOCKET_PATH = 108 };

/*
 * The table: what lies where. The daemon seals it: it never changes. `modification.nanoseconds` of an
 * archive may be FILLED: this is the copy that the daemon is filling. There are no granules without one.
 */
#define FILLED (~(u64)0)
struct archive_record {
    u64 device, inode, size;
    struct { i64 seconds; u64 nanoseconds; } modification, change;
};
struct table {
    char magic[8];
    u64 device, entries, entries_offset, tails, tails_offset, files;
    struct archive_record archives[FILES];
    u64 granule, granules;
};
struct entry {
    u64 location, size;
};
struct tail {
    u64 head, tail, head_length;
};
_Static_assert(offsetof(struct table, archives) == 56 && sizeof(struct archive_record) == 56, "layout");
_Static_assert(offsetof(struct table, granule) == 56 + FILES * 56, "layout");

/*
 * The state: a page with a word that says whether the mount is served, which only the daemon can write,
 * and a page with counters that the daemon reads.
 */
enum { SHARDS = 64, PAGE = 4096 };
struct shard { u64 reads, bytes, checked, reserved[5]; };
_Static_assert(sizeof(struct shard) * SHARDS == PAGE, "layout");

enum phase {
    NOT_ASKED, /* ask the daemon at the next read, but not before `not_before` */
    READY,
    NEVER,     /* use the mount from now on */
};

struct mount {
    u64 device;
    char socket[SOCKET_PATH];
    u32 phase;
    i64 not_before, pause; /* milliseconds */
    u32 unanswered; /* requests to the daemon that it did not answer in time */
    /* Written before the phase is READY, and constant from then on. */
    const struct table *table;
    const u32 *alive;
    struct shard *shards;
    /* A word that is 0 while the copy is valid. Then a bit for each granule, set once its bytes are there. */
    const u64 *granules;
    u64 archives, passed;
    /* See "Archive descriptors" below. */
    struct descriptors { int ordered, random; } descriptors[FILES];
    u32 fetched;
};

enum mode { OFF, ON, CHECK };

static struct mount mounts[MOUNTS];
static u32 mount_count;
static u32 mode; /* enum mode; OFF until the constructor has run */

static void switch_off(void)
{
    STORE(&mode, OFF);
}

static const char *environment_value(const char *name, size_t length)
{
    for (char **line = environ; *line; line++)
        if (equal(*line, name, length) && (*line)[length] == '=')
            return *line + length + 1;
    return 0;
}

/* Reads "DEV:SOCKET;DEV:SOCKET". Skips an item that it does not understand. */
static void read_mounts(const char *text)
{
    while (*text && mount_count < MOUNTS) {
        struct mount *mount = &mounts[mount_count];
        u64 device = 0;
        u32 digits = 0, length = 0;
        for (; *text >= '0' && *text <= '9'; text++, digits++)
            device = device * 10 + (u64)(*text - '0');
        int valid = digits > 0 && digits < 20 && *text == ':';
        if (*text == ':')
            text++;
        for (; *text && *text != ';'; text++, length++)
            if (length < SOCKET_PATH - 1)
                mount->socket[length] = *text;
        if (valid && length > 0 && length < SOCKET_PATH) {
            mount->socket[length] = 0;
            mount->device = device;
            mount_count++;
        }
        if (*text == ';')
            text++;
    }
}

/* Runs in the constructor, because later another thread may change the environment. */
static void read_environment(void)
{
    if (!&environ || !environ)
        return;
    const char *list = environment_value("ARCHFS_DIRECT_MOUNTS", 20);
    const char *setting = environment_value("ARCHFS_DIRECT", 13);
    if (!list || (setting && (equal(setting, "off", 4) || equal(setting, "0", 2))))
        return;
    read_mounts(list);
    if (mount_count > 0)
        STORE(&mode, setting && equal(setting, "check", 6) ? CHECK : ON);
}

/* ------------------------------------------------------------------------------------------------
 * Hand-over from the daemon
 * ------------------------------------------------------------------------------------------------ */

/*
 * Moves a descriptor to a high number, where programs are unlikely to close or replace it: from 1000
 * up, or lower if the limit of open files is low. Returns the new number, or -1.
 */
static int move_up(int fd)
{
    enum { DUPLICATE_CLOSE_ON_EXEC = 1030 };
    int moved = -1;
    for (int least = 1000; least > 15 && moved < 0; least /= 2)
        moved = (int)CALL(NR_FCNTL, fd, DUPLICATE_CLOSE_ON_EXEC, least);
    close_descriptor(fd);
    return moved < 0 ? -1 : moved;
}

/* Waits until the socket is readable. Returns 0 after the time limit. */
static int wait_readable(int fd, i64 limit)
{
    struct { int fd; short events, returned; } wanted = { fd, 1, 0 };
    for (;;) {
        i64 left = limit - now();
        if (left <= 0)
            return 0;
        struct time timeout = { left / 1000, left % 1000 * 1000000 };
        long result = CALL(NR_PPOLL, &wanted, 1, &timeout, 0, 0);
        if (result != -ERROR_INTERRUPTED)
            return result > 0;
    }
}

/* The daemon's answer. `count` descriptors were received. */
enum { STATE = 3, PASSED = STATE + FILES + 1, LINE = 32 };
struct answer {
    int count;
    int fds[PASSED];
    u32 length;
    char line[LINE];
};

/* Receives a part of the answer. Returns the bytes received; 0 or less means that no more follow. */
static long receive(int fd, struct answer *answer)
{
    enum { CLOSE_ON_EXEC = 0x40000000, TRUNCATED = 8, SOCKET_LEVEL = 1, RIGHTS = 1 };
    struct { size_t length; int level, type; int fds[PASSED]; } control;
    struct vector space = { answer->line + answer->length, LINE - answer->length };
    struct {
        void *name;
        u32 name_length;
        struct vector *vectors;
        size_t vector_count;
        void *control;
        size_t control_length;
        int flags;
    } message = { 0, 0, &space, 1, &control, sizeof control, 0 };

    long result = CALL(NR_RECVMSG, fd, &message, CLOSE_ON_EXEC);
    if (result < 0)
        return result;
    if (message.control_length >= sizeof control.length && control.level == SOCKET_LEVEL && control.type == RIGHTS) {
        size_t count = (control.length - offsetof(__typeof__(control), fds)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            if (answer->count < PASSED)
                answer->fds[answer->count++] = control.fds[i];
            else
                close_descriptor(control.fds[i]);
        }
    }
    answer->length += (u32)result;
    return message.flags & TRUNCATED ? -1 : result;
}

enum reply {
    NONE,
    LATER,
    UNANSWERED, /* within the time limit */
    GIVEN,
};

/*
 * Sends the request on a connected socket and receives the answer: GIVEN if a whole line came, whatever it
 * says.
 */
static enum reply exchange(int fd, struct answer *answer)
{
    enum { SOCKET_LEVEL = 1, PEER_CREDENTIALS = 17, NO_SIGNAL = 0x4000, TIME_LIMIT = 1000 };
    static const char request[] = "direct 2\n";
    struct { int process; u32 user, group; } peer;
    u32 peer_length = sizeof peer;
    i64 limit = now() + TIME_LIMIT;

    if (CALL(NR_GETSOCKOPT, fd, SOCKET_LEVEL, PEER_CREDENTIALS, &peer, &peer_length) != 0)
        return NONE;
    if (peer.user != 0 && peer.user != (u32)CALL(NR_GETEUID, 0))
        return NONE;
    if (CALL(NR_SENDTO, fd, request, sizeof request - 1, NO_SIGNAL, 0, 0) != sizeof request - 1)
        return NONE;
    while (answer->length < LINE) {
        if (!wait_readable(fd, limit))
            return UNANSWERED;
        long result = receive(fd, answer);
        if (result == -ERROR_INTERRUPTED || result == -ERROR_AGAIN)
            continue;
        if (result <= 0)
            return NONE;
        if (answer->line[answer->length - 1] == '\n')
            return GIVEN;
    }
    return NONE;
}

/* Whether the line is "direct ", and then the word or the number. */
static int is_line(const struct answer *answer, const char *word, u64 number)
{
    char line[32];
    size_t length = append(line, append(line, 0, "direct "), word);
    if (number > 0)
        length = append_number(line, length, number);
    length = append(line, length, "\n");
    return answer->length == length && equal(answer->line, line, length);
}

/* Asks the daemon. The caller closes the descriptors in `answer`, whatever the reply. */
static enum reply ask(const struct mount *mount, struct answer *answer)
{
    enum { UNIX = 1, STREAM = 1, CLOSE_ON_EXEC = 02000000, NO_WAIT = 04000 };
    struct { uint16_t family; char path[SOCKET_PATH]; } address = { UNIX, { 0 } };
    memcpy(address.path, mount->socket, SOCKET_PATH);

    answer->count = 0;
    answer->length = 0;
    int fd = (int)CALL(NR_SOCKET, UNIX, STREAM | CLOSE_ON_EXEC | NO_WAIT, 0);
    if (fd < 0 || (fd = move_up(fd)) < 0)
        return NONE;
    long connected = CALL(NR_CONNECT, fd, &address, sizeof address);
    enum reply reply = connected == 0 ? exchange(fd, answer) : NONE;
    close_descriptor(fd);
    /* The queue of connections is full. */
    if (connected == -ERROR_AGAIN)
        return LATER;
    if (reply != GIVEN)
        return reply;
    static const char too_many[] = "too many clients\n";
    if (is_line(answer, "later", 0)
        || (answer->length == sizeof too_many - 1 && equal(answer->line, too_many, sizeof too_many - 1)))
        return LATER;
    /* "direct N": a table, the word and the counters of the state, and N more: archives, and granules. */
    return answer->count > STATE && is_line(answer, "", (u64)answer->count - STATE) ? GIVEN : NONE;
}

static void close_passed(struct answer *answer)
{
    for (int i = 0; i < answer->count; i++)
        if (answer->fds[i] >= 0)
            close_descriptor(answer->fds[i]);
    answer->count = 0;
}

enum sharing { SHARED = 1, PRIVATE = 2 };

static void *map(int fd, u64 size, int protection, enum sharing sharing)
{
    long address = CALL(NR_MMAP, 0, size, protection, sharing, fd, 0);
    return address < 0 && address > -4096 ? 0 : (void *)address;
}

/* Whether `count` records of `record` bytes at `offset` lie within the table. */
static int within(u64 offset, u64 count, u64 record, u64 size)
{
    return offset % 4096 == 0 && offset <= size && count <= (size - offset) / record;
}

/* Maps a table that is sealed and sound, for this number of archives and granules. Returns null otherwise. */
static const struct table *map_table(int fd, u64 device, u64 passed)
{
    enum { GET_SEALS = 1034, ALL_SEALS = 15, READABLE = 1 };
    struct status status;
    long seals = CALL(NR_FCNTL, fd, GET_SEALS);
    if (seals < 0 || (seals & ALL_SEALS) != ALL_SEALS)
        return 0;
    if (status_of(fd, &status, MAY_SYNC) != 0 || status.size < sizeof(struct table))
        return 0;
    /* Before Linux 6.7, a file that is sealed against writing cannot be mapped shared, not even for reading. */
    const struct table *table = map(fd, status.size, READABLE, PRIVATE);
    if (!table)
        return 0;
    if (equal(table->magic, "ARCHFSD1", 8) && table->device == device
        && table->files > 0 && table->files <= FILES && table->files + (table->granules > 0) == passed
        && within(table->entries_offset, table->entries, sizeof(struct entry), status.size)
        && within(table->tails_offset, table->tails, sizeof(struct tail), status.size))
        return table;
    CALL(NR_MUNMAP, table, status.size);
    return 0;
}

/* Maps the granules of a table. Returns null if there are too few. */
static const u64 *map_granules(int fd, const struct table *table)
{
    enum { READABLE = 1 };
    struct status status;
    if (table->granule == 0 || table->granules < 64 || status_of(fd, &status, MAY_SYNC) != 0
        || table->granules / 8 > status.size)
        return 0;
    return map(fd, status.size, READABLE, SHARED);
}

enum access { READABLE_ONLY = 1, READ_AND_WRITE = 3 };

/* Maps a page of the state. */
static void *map_page(int fd, enum access access)
{
    struct status status;
    if (status_of(fd, &status, MAY_SYNC) != 0 || status.size < PAGE)
        return 0;
    return map(fd, PAGE, (int)access, SHARED);
}

/*
 * Archive descriptors
 *
 * A program may close all descriptors it does not know, or put its own file at a number of ours. So a
 * read of the archive counts only if a check after it finds the archive at that number. That is not
 * enough if another thread fetches a new descriptor in between and gets the same number: the first
 * thread reads the program's file and then checks the new descriptor. So a read counts only if no
 * thread talked to a daemon at any time from its start to the end of the check. The lower half of this
 * word is odd while a thread does; the others use the mount until then. The upper half is the process
 * of that thread, because a child that is forked in that time has only a copy of the word.
 *
 * Each archive has two. Around a file that is read in random order, the kernel's readahead would read
 * other files, which may be dropped from memory before they are read. So a read of RANDOM_MIN bytes
 * or more uses `random`, which is open with POSIX_FADV_RANDOM. Storage takes about as long to deliver a
 * few pages as RANDOM_MIN bytes, so shorter reads use `ordered`, with readahead. FileStorage has the same
 * rule, but keeps the readahead for the start of files on some network file systems.
 *
 * The program needs descriptors as well, so all mounts together take at most a part of its limit. What
 * does not fit is FORGOTTEN: first `random`, then whole archives.
 */
static u64 conversations;

/* Whether a thread of this process talks to a daemon. */
static int in_conversation(u64 word)
{
    return word % 2 == 1 && word >> 32 == (u64)CALL(NR_GETPID, 0);
}

static int begin_conversation(void)
{
    u64 seen = LOAD(&conversations);
    if (in_conversation(seen))
        return 0;
    u32 odd = ((u32)seen | 1) + 2;
    return swap(&conversations, seen, (u64)CALL(NR_GETPID, 0) << 32 | odd);
}

static void end_conversation(void)
{
    u64 seen = LOAD(&conversations);
    STORE(&conversations, seen >> 32 << 32 | (u32)((u32)seen + 1));
}

/* In place of a descriptor: the archive is not read any more. */
enum { FORGOTTEN = 0 };

/* The part of the limit of open files that this library takes, and how many descriptors it has. */
enum { LIMIT_PART = 8 };
static u64 held;

/* How many more it may have. The caller has begun a conversation. */
static u64 room(void)
{
    enum { OPEN_FILES = 7 };
    struct { u64 soft, hard; } limit;
    if (CALL(NR_PRLIMIT64, 0, OPEN_FILES, 0, &limit) != 0 || limit.soft / LIMIT_PART < held)
        return 0;
    return limit.soft / LIMIT_PART - held;
}

/* How often a process fetches descriptors of a mount again. */
enum { FETCHES = 16 };

/* The shortest read, in bytes, without readahead. */
enum { RANDOM_MIN = 32 << 10 };

enum identity { OURS, REWRITTEN, LOST };

static enum identity identify(int fd, const struct archive_record *record)
{
    struct status status;
    long result = status_of(fd, &status, DO_NOT_SYNC);
    if (result == 1)
        result = status_of(fd, &status, MAY_SYNC);
    if (result != 0 || device_of(&status) != record->device || status.inode != record->inode)
        return LOST;
    if (!is_regular(&status) || status.size != record->size)
        return REWRITTEN;
    if (record->modification.nanoseconds == FILLED)
        return OURS;
    /* The change time as well, because a program can set the modification time back. */
    if (status.modification.seconds != record->modification.seconds
        || status.modification.nanoseconds != record->modification.nanoseconds
        || status.change.seconds != record->change.seconds
        || status.change.nanoseconds != record->change.nanoseconds)
        return REWRITTEN;
    return OURS;
}

/*
 * Opens the file of a descriptor once more, so that this process has a readahead state of its own.
 * Returns -1 if the process may not.
 */
static int reopen(int fd)
{
    enum { CURRENT_DIRECTORY = -100, CLOSE_ON_EXEC = 02000000 };
    char path[32];
    descriptor_link(path, fd);
    return (int)CALL(NR_OPENAT, CURRENT_DIRECTORY, path, CLOSE_ON_EXEC);
}

/* Makes a received descriptor this process's own and closes it. Returns its final number, or FORGOTTEN. */
static int adopt(int fd, const struct archive_record *record)
{
    if (identify(fd, record) == OURS) {
        int own = reopen(fd);
        if (own >= 0 && identify(own, record) == OURS) {
            close_descriptor(fd);
            fd = own;
        } else if (own >= 0) {
            close_descriptor(own);
        }
        fd = move_up(fd);
        if (fd >= 0 && identify(fd, record) == OURS)
            return fd;
    }
    if (fd >= 0)
        close_descriptor(fd);
    return FORGOTTEN;
}

/* Opens an archive once more, without readahead. FORGOTTEN if that is not possible. */
static int open_random(int fd, const struct archive_record *record)
{
    enum { RANDOM = 1 };
    int random = fd == FORGOTTEN ? -1 : reopen(fd);
    if (random >= 0)
        random = move_up(random);
    if (random < 0)
        return FORGOTTEN;
    if (identify(random, record) == OURS && CALL(NR_FADVISE64, random, 0, 0, RANDOM) == 0)
        return random;
    close_descriptor(random);
    return FORGOTTEN;
}

/* Takes what the daemon gave. Returns 0 if it cannot be used. */
static int take(struct mount *mount, struct answer *answer)
{
    u64 passed = (u64)answer->count - STATE;
    const struct table *table = map_table(answer->fds[0], mount->device, passed);
    if (!table)
        return 0;
    const u64 *granules = 0;
    if (table->granules > 0 && !(granules = map_granules(answer->fds[answer->count - 1], table)))
        return 0;
    const u32 *alive = map_page(answer->fds[1], READABLE_ONLY);
    struct shard *shards = map_page(answer->fds[2], READ_AND_WRITE);
    if (!alive || !shards)
        return 0;
    int kept = (int)smaller(table->files, room());
    /* The others are closed first, because the program may have used up all numbers. */
    for (int i = 0; i < answer->count; i++)
        if (i < STATE || i >= STATE + kept)
            close_descriptor(answer->fds[i]);
    answer->count = 0;
    for (int i = 0; i < kept; i++) {
        mount->descriptors[i].ordered = adopt(answer->fds[STATE + i], &table->archives[i]);
        held += mount->descriptors[i].ordered != FORGOTTEN;
    }
    for (int i = 0; i < kept && room() > 0; i++) {
        struct descriptors *own = &mount->descriptors[i];
        own->random = open_random(own->ordered, &table->archives[i]);
        held += own->random != FORGOTTEN;
    }
    mount->table = table;
    mount->alive = alive;
    mount->shards = shards;
    mount->granules = granules;
    mount->archives = table->files;
    mount->passed = passed;
    return 1;
}

/* Gives a mount up. The library does nothing any more once it has given up all of them. */
static void give_up(struct mount *mount)
{
    STORE(&mount->phase, NEVER);
    for (u32 i = 0; i < mount_count; i++)
        if (LOAD(&mounts[i].phase) != NEVER)
            return;
    switch_off();
}

/* Asks the daemon for a mount's table if it is time to. The caller has begun a conversation. */
static void request_table(struct mount *mount)
{
    enum { FIRST_PAUSE = 100, LONGEST_PAUSE = 1600, UNANSWERED_PAUSE = 10000, MOST_UNANSWERED = 6 };
    struct answer answer;
    enum reply reply = ask(mount, &answer);
    if (reply == GIVEN && take(mount, &answer)) {
        STORE(&mount->phase, READY);
    } else if (reply == LATER || (reply == UNANSWERED && ++mount->unanswered < MOST_UNANSWERED)) {
        i64 pause = mount->pause == 0 ? FIRST_PAUSE : (i64)smaller((u64)mount->pause * 2, LONGEST_PAUSE);
        /* It is stopped, or the node is busy. Each of these requests takes the whole time limit. */
        if (reply == UNANSWERED)
            pause = UNANSWERED_PAUSE;
        STORE(&mount->not_before, now() + pause);
        STORE(&mount->pause, pause);
    } else {
        give_up(mount);
    }
    close_passed(&answer);
}

/* Whether the table of a mount is there. Asks the daemon for it at the first read, and then now and then. */
static int is_ready(struct mount *mount)
{
    if (LOAD(&mount->phase) == NOT_ASKED) {
        if (LOAD(&mount->pause) > 0 && now() < LOAD(&mount->not_before))
            return 0;
        if (!begin_conversation())
            return 0;
        if (LOAD(&mount->phase) == NOT_ASKED)
            request_table(mount);
        end_conversation();
    }
    return LOAD(&mount->phase) == READY;
}

/* Fetches one of an archive's descriptors again, unless another thread has done so. */
static void fetch_again(struct mount *mount, u32 archive, int *descriptor, int lost)
{
    if (!begin_conversation())
        return;
    if (LOAD(descriptor) == lost) {
        const struct archive_record *record = &mount->table->archives[archive];
        struct answer answer = { 0 };
        int fd = FORGOTTEN;
        if (mount->fetched++ < FETCHES && ask(mount, &answer) == GIVEN
            && (u64)answer.count == mount->passed + STATE) {
            fd = adopt(answer.fds[STATE + archive], record);
            answer.fds[STATE + archive] = -1;
        }
        close_passed(&answer);
        if (descriptor == &mount->descriptors[archive].random && fd != FORGOTTEN) {
            int ordered = fd;
            fd = open_random(ordered, record);
            close_descriptor(ordered);
        }
        STORE(descriptor, fd);
    }
    end_conversation();
}

/* ------------------------------------------------------------------------------------------------
 * Lookup: which bytes of which archive a descriptor's file is
 * ------------------------------------------------------------------------------------------------ */

/* A file's bytes are those of the first part, then those of the second, which may be empty. */
struct file {
    struct mount *mount;
    u64 inode, size;
    struct part { u32 archive; u64 offset, length; } parts[2];
};

static int locate_part(const struct table *table, struct part *part, u64 location, u64 length)
{
    u32 archive = (u32)(location >> 48 & 0x7fff);
    if (archive == 0 || archive > table->files)
        return 0;
    part->archive = archive - 1;
    part->offset = location & 0xffffffffffff;
    part->length = length;
    u64 size = table->archives[archive - 1].size;
    return part->offset <= size && length <= size - part->offset;
}

/* Looks up an inode. Returns whether the table has its bytes. */
static int look_up(const struct table *table, const struct status *status, struct file *file)
{
    const u64 has_tail = (u64)1 << 63;
    if (status->inode >= table->entries)
        return 0;
    const struct entry *entry = (const struct entry *)((const char *)table + table->entries_offset) + status->inode;
    if ((entry->location >> 48 & 0x7fff) == 0 || entry->size != status->size)
        return 0;
    file->inode = status->inode;
    file->size = status->size;
    file->parts[1].length = 0;
    if (!(entry->location & has_tail))
        return locate_part(table, &file->parts[0], entry->location, entry->size);

    u64 index = entry->location & 0xffffffffffff;
    if (index >= table->tails)
        return 0;
    const struct tail *tail = (const struct tail *)((const char *)table + table->tails_offset) + index;
    return tail->head_length <= entry->size && locate_part(table, &file->parts[0], tail->head, tail->head_length)
        && locate_part(table, &file->parts[1], tail->tail, entry->size - tail->head_length);
}

/* Whether the mount is served. Its device number may belong to another mount as soon as it is not. */
static int is_alive(const struct mount *mount)
{
    u32 alive = LOAD(mount->alive);
    return (alive & 0x3fffffff) != 0 && !(alive & 0x40000000);
}

/* Whether this process has the archives of a file. */
static int has_descriptors(const struct mount *mount, const struct file *file)
{
    for (int i = 0; i < 2; i++)
        if ((i == 0 || file->parts[i].length > 0)
            && LOAD(&mount->descriptors[file->parts[i].archive].ordered) == FORGOTTEN)
            return 0;
    return 1;
}

static int find(int fd, struct file *file)
{
    struct status status;
    long result = status_of(fd, &status, DO_NOT_SYNC);
    /* The kernel is too old, or a filter forbids the call. */
    if (result == -ERROR_NO_CALL || result == -ERROR_PERMISSION)
        switch_off();
    if (result != 0 || !is_regular(&status))
        return 0;
    u64 device = device_of(&status);
    for (u32 i = 0; i < mount_count; i++) {
        struct mount *mount = &mounts[i];
        if (mount->device != device || !is_ready(mount))
            continue;
        file->mount = mount;
        /* Liveness comes last: then the device number was this mount's when the status was taken. */
        if (look_up(mount->table, &status, file) && has_descriptors(mount, file) && is_alive(mount))
            return 1;
    }
    return 0;
}

/*
 * Descriptors whose last lookup failed, so that small reads of other files cost little. A wrong answer
 * costs time only: at most 16 small reads go to the mount. A slot is descriptor * 16 + reads left.
 */
enum { STRANGERS = 64, STRANGER_READS = 16, SMALL_READ = 16384 };
static u32 strangers[STRANGERS];

static int is_stranger(int fd)
{
    u32 *slot = &strangers[(u32)fd % STRANGERS], value = __atomic_load_n(slot, __ATOMIC_RELAXED);
    if (value / STRANGER_READS != (u32)fd || value % STRANGER_READS == 0)
        return 0;
    __atomic_store_n(slot, value - 1, __ATOMIC_RELAXED);
    return 1;
}

static void remember_stranger(int fd)
{
    u32 value = (u32)fd * STRANGER_READS + STRANGER_READS - 1;
    __atomic_store_n(&strangers[(u32)fd % STRANGERS], value, __ATOMIC_RELAXED);
}

/* ------------------------------------------------------------------------------------------------
 * One read
 * ------------------------------------------------------------------------------------------------ */

/* Buffers of one call. `total` is the sum of their lengths. */
struct buffers {
    const struct vector *vectors;
    int count;
    u64 total;
};

enum { MOST_VECTORS = 1024, MOST_BYTES = 0x7ffff000 };

/* Reads `length` bytes of a descriptor into the buffers, after their first `skip` bytes. */
static long fill(int fd, const struct buffers *buffers, u64 skip, u64 length, u64 offset)
{
    u64 done = 0;
    for (int i = 0; i < buffers->count && done < length; i++) {
        struct vector vector = buffers->vectors[i];
        if (skip >= vector.length) {
            skip -= vector.length;
            continue;
        }
        u64 wanted = smaller(vector.length - skip, length - done);
        long result = CALL(NR_PREAD64, fd, vector.base + skip, wanted, offset + done);
        if (result <= 0)
            return done > 0 ? (long)done : result;
        done += (u64)result;
        if ((u64)result < wanted)
            break;
        skip = 0;
    }
    return (long)done;
}

/* Whether an archive is what it was: always, unless this is a copy whose original was rewritten. */
static int is_valid(const struct mount *mount, u32 archive)
{
    int is_filled = mount->table->archives[archive].modification.nanoseconds == FILLED;
    return !is_filled || (mount->granules && LOAD(&mount->granules[0]) == 0);
}

/* Whether a range of an archive is there: all of it, unless this is a copy that the daemon is filling. */
static int is_there(const struct mount *mount, u32 archive, u64 offset, u64 length)
{
    const struct table *table = mount->table;
    if (table->archives[archive].modification.nanoseconds != FILLED)
        return 1;
    if (!mount->granules || length == 0)
        return 0;
    u64 last = (offset + length - 1) / table->granule;
    if (last >= table->granules - 64)
        return 0;
    for (u64 granule = offset / table->granule; granule <= last; granule++)
        if (!(LOAD(&mount->granules[1 + granule / 64]) >> granule % 64 & 1))
            return 0;
    return 1;
}

/* Reads from an archive, and checks that the archive was read. 0 or less: use the mount. */
static long read_archive(const struct file *file, u32 archive, const struct buffers *buffers, u64 skip, u64 length,
                         u64 offset)
{
    if (!is_there(file->mount, archive, offset, length))
        return 0;
    struct descriptors *own = &file->mount->descriptors[archive];
    int has_random = length >= RANDOM_MIN && LOAD(&own->random) != FORGOTTEN;
    int *descriptor = has_random ? &own->random : &own->ordered;
    for (;;) {
        u64 before = LOAD(&conversations);
        int fd = LOAD(descriptor);
        if (fd == FORGOTTEN || in_conversation(before))
            return 0;
        long result = fill(fd, buffers, skip, length, offset);
        enum identity identity = identify(fd, &file->mount->table->archives[archive]);
        if (!is_valid(file->mount, archive))
            return 0;
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (LOAD(&conversations) != before)
            continue;
        if (identity == OURS)
            return result;
        if (identity == REWRITTEN) {
            STORE(descriptor, FORGOTTEN);
            return 0;
        }
        fetch_again(file->mount, archive, descriptor, fd);
    }
}

/* Reads the file's bytes from `start` on. 0 or less: use the mount. */
static long read_file(const struct file *file, const struct buffers *buffers, u64 start, u64 length)
{
    u64 done = 0, part_start = 0;
    for (int i = 0; i < 2 && done < length; i++) {
        const struct part *part = &file->parts[i];
        u64 from = start + done - part_start;
        part_start += part->length;
        if (from >= part->length)
            continue;
        u64 wanted = smaller(length - done, part->length - from);
        long result = read_archive(file, part->archive, buffers, done, wanted, part->offset + from);
        if (result <= 0)
            return 0;
        done += (u64)result;
        if ((u64)result < wanted)
            break;
    }
    return (long)done;
}

static void count_read(const struct file *file, u64 bytes, int checked)
{
    /* The stack differs from thread to thread. Forked processes have the same, but read other files. */
    u64 hash = ((u64)__builtin_frame_address(0) >> 12 ^ file->inode) * 0x9e3779b97f4a7c15;
    struct shard *shard = &file->mount->shards[hash >> 58];
    add(&shard->reads, 1);
    add(&shard->bytes, bytes);
    if (checked)
        add(&shard->checked, 1);
}

/*
 * Adds up the lengths of a program's vectors. The array may be a bad pointer, so the kernel looks at
 * it first: it does so even if there is nothing to read because the offset is the file's end. Our own
 * descriptors would not do, because the program may have put a longer file at their numbers.
 */
static int add_up(int fd, const struct file *file, struct buffers *buffers)
{
    if (CALL(NR_PREADV, fd, buffers->vectors, buffers->count, file->size, 0) != 0)
        return 0;
    buffers->total = 0;
    for (int i = 0; i < buffers->count; i++) {
        u64 length = buffers->vectors[i].length;
        if (length > MOST_BYTES || (buffers->total += length) > MOST_BYTES)
            return 0;
    }
    return buffers->total > 0;
}

/* Results of the functions below: bytes, -errno, or this. */
#define USE_MOUNT (-(1L << 62))

static void check_read(const struct file *, int, const struct buffers *, u64, u64);

/* Reads at an offset and leaves the position as it is. */
static long read_at(int fd, const struct file *file, const struct buffers *buffers, u64 start)
{
    /* The only call that fails here is that of an O_PATH descriptor, which cannot be read. */
    if (seek_by(fd, 0) < 0)
        return USE_MOUNT;
    if (start >= file->size) {
        check_read(file, fd, buffers, start, 0);
        return 0;
    }
    long result = read_file(file, buffers, start, smaller(buffers->total, file->size - start));
    if (result <= 0)
        return USE_MOUNT;
    check_read(file, fd, buffers, start, (u64)result);
    return result;
}

/*
 * Reads at the position. Threads and processes may share it, so a read first moves it over the bytes
 * that it wants: no other read gets these. It reads them, and then moves the position back by the number
 * of bytes that it did not get.
 */
static long read_next(int fd, const struct file *file, const struct buffers *buffers)
{
    i64 position = seek_by(fd, 0);
    if (position < 0)
        return USE_MOUNT;
    if ((u64)position >= file->size) {
        check_read(file, fd, buffers, (u64)position, 0);
        return 0;
    }
    u64 reserved = smaller(buffers->total, file->size - (u64)position);
    i64 end = seek_by(fd, (i64)reserved);
    if (end < 0)
        return USE_MOUNT;
    u64 start = (u64)end - reserved;
    long result = 0;
    if (start < file->size) {
        result = read_file(file, buffers, start, smaller(reserved, file->size - start));
        if (result > 0)
            check_read(file, fd, buffers, start, (u64)result);
        else
            /* From the mount, but the bytes that are reserved: others may have moved the position. */
            result = CALL(NR_PREADV, fd, buffers->vectors, buffers->count, start, 0);
    }
    i64 delivered = result > 0 ? result : 0;
    if (delivered != (i64)reserved)
        seek_by(fd, delivered - (i64)reserved);
    return result;
}

/*
 * Tries to answer a read call. `offset` is -1 for a read at the position. `is_array` is set if the
 * vectors are an array of the program's.
 */
static long direct(int fd, struct buffers buffers, int is_array, i64 offset)
{
    struct file file;
    if (LOAD(&mode) == OFF || fd < 0)
        return USE_MOUNT;
    int is_small = !is_array && buffers.total < SMALL_READ;
    if (is_small && is_stranger(fd))
        return USE_MOUNT;
    if (!find(fd, &file)) {
        if (is_small)
            remember_stranger(fd);
        return USE_MOUNT;
    }
    if (is_array && !add_up(fd, &file, &buffers))
        return USE_MOUNT;
    /* Before the position moves, because the thread may end here. */
    if (pthread_testcancel)
        pthread_testcancel();
    return offset < 0 ? read_next(fd, &file, &buffers) : read_at(fd, &file, &buffers, (u64)offset);
}

static long direct_scalar(int fd, void *buffer, size_t count, i64 offset)
{
    if (count == 0 || count > MOST_BYTES)
        return USE_MOUNT;
    struct vector vector = { buffer, count };
    return direct(fd, (struct buffers){ &vector, 1, count }, 0, offset);
}

static long direct_array(int fd, const struct vector *vectors, int count, i64 offset)
{
    if (count <= 0 || count > MOST_VECTORS)
        return USE_MOUNT;
    return direct(fd, (struct buffers){ vectors, count, 0 }, 1, offset);
}

/* ------------------------------------------------------------------------------------------------
 * Check mode (ARCHFS_DIRECT=check): read from the mount as well, and compare
 * ------------------------------------------------------------------------------------------------ */

/* Prints the file's path and the offset, and aborts. */
__attribute__((noreturn, noinline)) static void report_difference(int fd, u64 offset)
{
    enum { CURRENT_DIRECTORY = -100, ABORT = 6, PATH = 400 };
    char line[PATH + 120], link[32];
    size_t length = append(line, 0, "archfs: error: ");
    descriptor_link(link, fd);
    long path = CALL(NR_READLINKAT, CURRENT_DIRECTORY, link, line + length, PATH);
    length = path > 0 ? length + (size_t)path : append(line, length, link);
    length = append(line, length, ": a direct read differs from the mount at byte ");
    length = append(line, append_number(line, length, offset), "\n");
    CALL(NR_WRITE, 2, line, length);
    CALL(NR_TGKILL, CALL(NR_GETPID, 0), CALL(NR_GETTID, 0), ABORT);
    __builtin_trap();
}

/* Whether two of the buffers share memory. Then their contents cannot be compared. */
static int overlap(const struct buffers *buffers)
{
    for (int i = 0; i < buffers->count; i++)
        for (int k = 0; k < i; k++) {
            const struct vector *a = &buffers->vectors[i], *b = &buffers->vectors[k];
            if (a->base < b->base + b->length && b->base < a->base + a->length)
                return 1;
        }
    return 0;
}

/* Compares `length` delivered bytes with the mount's; 0 stands for the end of the file. */
static int compare(int fd, const struct buffers *buffers, u64 start, u64 length)
{
    char bytes[512]; /* small, because the stack may be a signal handler's */
    u64 done = 0, in_vector = 0;
    if (length == 0) {
        long result = CALL(NR_PREAD64, fd, bytes, 1, start);
        if (result > 0)
            report_difference(fd, start);
        return result == 0;
    }
    for (int i = 0; i < buffers->count && done < length;) {
        const struct vector *vector = &buffers->vectors[i];
        u64 wanted = smaller(smaller(vector->length - in_vector, length - done), sizeof bytes);
        if (wanted == 0) {
            i++;
            in_vector = 0;
            continue;
        }
        long result = CALL(NR_PREAD64, fd, bytes, wanted, start + done);
        /* The mount has an error of its own: nothing to compare with. */
        if (result < 0)
            return 0;
        for (u64 k = 0; k < wanted; k++)
            if (k >= (u64)result || bytes[k] != vector->base[in_vector + k])
                report_difference(fd, start + done + k);
        done += wanted;
        in_vector += wanted;
    }
    return 1;
}

/* Ends a read that the archive answered: counts it, and in check mode compares it. */
__attribute__((noinline)) static void check_read(const struct file *file, int fd, const struct buffers *buffers,
                                                 u64 start, u64 length)
{
    int checked = LOAD(&mode) == CHECK && !overlap(buffers) && compare(fd, buffers, start, length);
    count_read(file, length, checked);
}

/* ------------------------------------------------------------------------------------------------
 * The exported functions
 * ------------------------------------------------------------------------------------------------ */

/* The functions behind this library: those of the next preloaded library, or of libc. */
static struct {
    ssize (*read)(int, void *, size_t);
    ssize (*pread)(int, void *, size_t, i64);
    ssize (*readv)(int, const struct vector *, int);
    ssize (*preadv)(int, const struct vector *, int, i64);
    ssize (*preadv2)(int, const struct vector *, int, i64, int);
    int (*isatty)(int);
    int (*prctl)(int, long, long, long, long);
    long (*syscall)(long, ...);
} next;

__attribute__((constructor)) static void start(void)
{
    void *const next_object = (void *)-1L; /* RTLD_NEXT */
    if (dlsym) {
        next.read = (__typeof__(next.read))dlsym(next_object, "read");
        next.pread = (__typeof__(next.pread))dlsym(next_object, "pread");
        next.readv = (__typeof__(next.readv))dlsym(next_object, "readv");
        next.preadv = (__typeof__(next.preadv))dlsym(next_object, "preadv");
        next.preadv2 = (__typeof__(next.preadv2))dlsym(next_object, "preadv2");
        next.isatty = (__typeof__(next.isatty))dlsym(next_object, "isatty");
        next.prctl = (__typeof__(next.prctl))dlsym(next_object, "prctl");
        next.syscall = (__typeof__(next.syscall))dlsym(next_object, "syscall");
    }
    if (!next.read)
        next.read = __read;
    if (!next.pread)
        next.pread = __pread64;
    read_environment();
}

/* Turns a kernel's result into that of a libc function. errno stays as it is on success. */
static long libc_result(long result)
{
    if (result < 0 && result > -4096) {
        if (__errno_location)
            *__errno_location() = (int)-result;
        return -1;
    }
    return result;
}

/* A call that no function is known for: the bare system call, which is a cancellation point only before it starts. */
#define BARE_READ(...) (pthread_testcancel ? pthread_testcancel() : (void)0, libc_result(CALL(__VA_ARGS__)))

/* These two are static, because a call of an exported function may end in another library's. */
static ssize read_here(int fd, void *buffer, size_t count)
{
    long result = direct_scalar(fd, buffer, count, -1);
    if (result != USE_MOUNT)
        return libc_result(result);
    return next.read ? next.read(fd, buffer, count) : BARE_READ(NR_READ, fd, buffer, count);
}

static ssize pread_here(int fd, void *buffer, size_t count, i64 offset)
{
    long result = offset < 0 ? USE_MOUNT : direct_scalar(fd, buffer, count, offset);
    if (result != USE_MOUNT)
        return libc_result(result);
    return next.pread ? next.pread(fd, buffer, count, offset) : BARE_READ(NR_PREAD64, fd, buffer, count, offset);
}

EXPORT ssize read(int fd, void *buffer, size_t count)
{
    return read_here(fd, buffer, count);
}

EXPORT ssize pread(int fd, void *buffer, size_t count, i64 offset)
{
    return pread_here(fd, buffer, count, offset);
}

EXPORT ssize readv(int fd, const struct vector *vectors, int count)
{
    long result = direct_array(fd, vectors, count, -1);
    if (result != USE_MOUNT)
        return libc_result(result);
    return next.readv ? next.readv(fd, vectors, count) : BARE_READ(NR_READV, fd, vectors, count);
}

EXPORT ssize preadv(int fd, const struct vector *vectors, int count, i64 offset)
{
    long result = offset < 0 ? USE_MOUNT : direct_array(fd, vectors, count, offset);
    if (result != USE_MOUNT)
        return libc_result(result);
    return next.preadv ? next.preadv(fd, vectors, count, offset)
                       : BARE_READ(NR_PREADV, fd, vectors, count, offset, 0);
}

EXPORT ssize preadv2(int fd, const struct vector *vectors, int count, i64 offset, int flags)
{
    /* Offset -1 is a read at the position here. Rare, as flags are: the mount's. */
    long result = offset < 0 || flags != 0 ? USE_MOUNT : direct_array(fd, vectors, count, offset);
    if (result != USE_MOUNT)
        return libc_result(result);
    return next.preadv2 ? next.preadv2(fd, vectors, count, offset, flags)
                        : BARE_READ(NR_PREADV2, fd, vectors, count, offset, 0, flags);
}

#define SAME_AS(function) EXPORT __attribute__((alias(#function)))
SAME_AS(pread) ssize pread64(int, void *, size_t, i64);
SAME_AS(preadv) ssize preadv64(int, const struct vector *, int, i64);
SAME_AS(preadv2) ssize preadv64v2(int, const struct vector *, int, i64, int);

/* The functions that programs call when they were compiled with _FORTIFY_SOURCE. */
static void check_size(size_t count, size_t size)
{
    if (count <= size)
        return;
    if (__chk_fail)
        __chk_fail();
    __builtin_trap();
}

EXPORT ssize __read_chk(int fd, void *buffer, size_t count, size_t size)
{
    check_size(count, size);
    return read_here(fd, buffer, count);
}

EXPORT ssize __pread_chk(int fd, void *buffer, size_t count, i64 offset, size_t size)
{
    check_size(count, size);
    return pread_here(fd, buffer, count, offset);
}

SAME_AS(__pread_chk) ssize __pread64_chk(int, void *, size_t, i64, size_t);

/*
 * CPython before 3.14 asks whether each file that it opens is a terminal. On a FUSE mount that is a request
 * to the daemon, at each open, which takes as long as reading a small file. A regular file is never one.
 */
EXPORT int isatty(int fd)
{
    enum { NOT_A_TERMINAL = 25, GET_ATTRIBUTES = 0x5401 }; /* ENOTTY, TCGETS */
    struct status status;
    /* A descriptor opened with O_PATH gets another error: it has no position either. */
    if (LOAD(&mode) != OFF && fd >= 0 && status_of(fd, &status, DO_NOT_SYNC) == 0 && is_regular(&status)
        && seek_by(fd, 0) >= 0) {
        libc_result(-NOT_A_TERMINAL);
        return 0;
    }
    char attributes[64]; /* the kernel's struct termios has 36 bytes */
    return next.isatty ? next.isatty(fd) : libc_result(CALL(NR_IOCTL, fd, GET_ATTRIBUTES, attributes)) == 0;
}

/*
 * A program that sets a seccomp filter may have allowed read only, and would be killed at our statx. So
 * the library is off from then on. A variable argument is passed like any other on these architectures,
 * and it is harmless to read more of them than there are.
 */
EXPORT int prctl(int option, long a, long b, long c, long d)
{
    enum { SET_SECCOMP = 22 };
    if (option == SET_SECCOMP)
        switch_off();
    return next.prctl ? next.prctl(option, a, b, c, d) : (int)libc_result(CALL(NR_PRCTL, option, a, b, c, d));
}

/*
 * On x86_64 the seventh argument is on the stack. A function with seven parameters may write to it, but if
 * there are fewer arguments, a variable of the caller is there. A variadic function only reads it.
 */
EXPORT long syscall(long number, ...)
{
    enum { SET_SECCOMP = 22 };
    long a[6];
    __builtin_va_list list;
    __builtin_va_start(list, number);
    for (int i = 0; i < 6; i++)
        a[i] = __builtin_va_arg(list, long);
    __builtin_va_end(list);
    if (number == NR_SECCOMP || (number == NR_PRCTL && a[0] == SET_SECCOMP))
        switch_off();
    return next.syscall ? next.syscall(number, a[0], a[1], a[2], a[3], a[4], a[5])
                        : libc_result(CALL(number, a[0], a[1], a[2], a[3], a[4], a[5]));
}
