/*
 * Stands between `forebay --io posix` and its devices (LD_PRELOAD): records every write and flush,
 * and lets some fail.
 *
 * FOREBAY_SHIM_DEVICES names the devices (files that exist, separated by colons; their place in
 * the list is their number) and FOREBAY_SHIM_LOG the log, a file of its final size whose first
 * page is `struct control`. The log is shared memory: what was appended is there after kill -9.
 * Records are appended under one lock, so their order is the order of their times, and a record is
 * there before the call that it is about goes on or returns: whatever a client was told was
 * recorded before.
 *
 * Fault model of a failed flush: it reports EIO, and each page (4096 bytes) that was written since
 * the last good flush is lost or not, as `lost` says. A lost page never becomes durable by a later
 * flush, which succeeds. Reads see it still, as Linux has it (a page of the page cache stays, and
 * is clean), or, with `revert`, what was durable before it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#define MAGIC 0x31474f4c4b434f4cULL
#define MAX_DEVICES 4
#define MAX_BAD 8
#define PAGE 4096ULL
#define EXT4_MAGIC 0xEF53

/* Python knows this layout: recording.py. */
struct faults {
    uint32_t flush_in, flushes; /* the flush_in-th flush from now fails (1: the next), and so many in all */
    uint32_t write_in, writes;  /* so do writes */
    uint32_t write_is_done;     /* a failed write was done all the same */
    uint32_t unused;
    uint64_t flush_below; /* only flushes count that cover a write below this; 0: all */
};
struct bad {
    uint32_t device;
    int32_t times; /* reads that fail; -1: all, until it is written */
    uint64_t offset, length;
};
struct control {
    uint64_t magic, size, tail, seed;
    uint32_t recording, delay_us, revert, undo;
    uint32_t lost_percent, failed_flushes, failed_writes, failed_reads;
    uint64_t unused[4];
    struct faults faults[MAX_DEVICES];
    struct bad bad[MAX_BAD];
};
enum kind { WRITE_BEGIN = 1, WRITE_END, FLUSH_BEGIN, FLUSH_END, ZERO_BEGIN };
struct record {
    uint32_t kind, device;
    uint64_t id, time_ns, offset, length;
    int64_t result;  /* of an END: 0, or -EIO: nothing was done, or -EIO - 1000: reported as failed, but done */
    uint64_t bytes;  /* that follow, padded to 8 */
};

static struct control *control;
static struct stat devices[MAX_DEVICES];
static int device_count;
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
/* Held shared by a write from its BEGIN to its END, exclusively by a flush while it fails. */
static pthread_rwlock_t write_lock = PTHREAD_RWLOCK_INITIALIZER;
static uint64_t next_id;
/* The lowest offset that was written since the last flush began. */
static uint64_t lowest[MAX_DEVICES] = {UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX};

/* What the writes since the last good flush have replaced, the newest first. */
struct undo {
    struct undo *older;
    uint64_t id, offset, length;
    int ended;
    char old[];
};
static struct undo *undos[MAX_DEVICES];
static pthread_mutex_t undo_lock = PTHREAD_MUTEX_INITIALIZER;

static ssize_t (*real_preadv2)(int, const struct iovec *, int, off_t, int);
static ssize_t (*real_pwritev2)(int, const struct iovec *, int, off_t, int);
static int (*real_fdatasync)(int);
static int (*real_fallocate)(int, int, off_t, off_t);
static int (*real_fstatfs)(int, struct statfs *);

static void die(const char *what) {
    fprintf(stderr, "shim: %s: %s\n", what, strerror(errno));
    _exit(99);
}

__attribute__((constructor)) static void begin(void) {
    real_preadv2 = dlsym(RTLD_NEXT, "preadv2");
    real_pwritev2 = dlsym(RTLD_NEXT, "pwritev2");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    real_fallocate = dlsym(RTLD_NEXT, "fallocate");
    real_fstatfs = dlsym(RTLD_NEXT, "fstatfs");
    const char *log = getenv("FOREBAY_SHIM_LOG"), *list = getenv("FOREBAY_SHIM_DEVICES");
    if (!log || !list)
        return;
    char *names = strdup(list);
    for (char *name = strtok(names, ":"); name; name = strtok(NULL, ":")) {
        if (device_count == MAX_DEVICES || stat(name, &devices[device_count]) != 0)
            die(name);
        device_count++;
    }
    free(names);
    int fd = open(log, O_RDWR | O_CLOEXEC);
    struct stat s;
    if (fd < 0 || fstat(fd, &s) != 0)
        die(log);
    control = mmap(NULL, s.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (control == MAP_FAILED || control->magic != MAGIC || control->size != (uint64_t)s.st_size)
        die("the log is not one");
    close(fd);
    /* Numbers go on where those of the life before have ended. */
    next_id = control->tail;
}

static int device_of(int fd) {
    struct stat s;
    if (!control || fstat(fd, &s) != 0)
        return -1;
    for (int n = 0; n < device_count; n++)
        if (s.st_dev == devices[n].st_dev && s.st_ino == devices[n].st_ino)
            return n;
    return -1;
}

static uint64_t mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15ULL;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
    return x ^ (x >> 31);
}

/* recording.py decides the same. */
static int is_lost(uint64_t seed, int device, uint64_t page) {
    return mix(seed ^ mix(((uint64_t)device << 56) ^ page)) % 100 < control->lost_percent;
}

static uint64_t length_of(const struct iovec *v, int count) {
    uint64_t length = 0;
    for (int n = 0; n < count; n++)
        length += v[n].iov_len;
    return length;
}

static uint64_t append(enum kind kind, int device, uint64_t id, uint64_t offset, uint64_t length, int64_t result,
                       const struct iovec *v, int count) {
    if (!control->recording)
        return 0;
    uint64_t bytes = v ? length : 0;
    pthread_mutex_lock(&log_lock);
    uint64_t need = sizeof(struct record) + ((bytes + 7) & ~7ULL);
    if (control->tail + need > control->size) {
        errno = ENOSPC;
        die("the log is full");
    }
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    struct record *r = (struct record *)((char *)control + control->tail);
    if (id == 0)
        id = ++next_id;
    uint64_t now = t.tv_sec * 1000000000ULL + t.tv_nsec;
    *r = (struct record){kind, (uint32_t)device, id, now, offset, length, result, bytes};
    char *at = (char *)(r + 1);
    for (int n = 0; v && n < count; n++) {
        memcpy(at, v[n].iov_base, v[n].iov_len);
        at += v[n].iov_len;
    }
    __atomic_store_n(&control->tail, control->tail + need, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&log_lock);
    return id;
}

/* Counts one operation; whether it is one of those that are to fail. */
static int fails(uint32_t *in, uint32_t *left) {
    uint32_t before = __atomic_load_n(in, __ATOMIC_ACQUIRE);
    while (before > 1)
        if (__atomic_compare_exchange_n(in, &before, before - 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            return 0;
    if (before == 0)
        return 0;
    uint32_t more = __atomic_load_n(left, __ATOMIC_ACQUIRE);
    while (more > 0)
        if (__atomic_compare_exchange_n(left, &more, more - 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            return 1;
    return 0;
}

static void pause_a_little(uint64_t id) {
    uint64_t dice = mix(control->seed ^ id);
    /* Most are quick; some are overtaken by many. */
    if (control->delay_us && dice % 4 == 0)
        usleep((dice >> 8) % control->delay_us);
}

static void note_undo(int fd, int device, uint64_t id, uint64_t offset, uint64_t length) {
    struct undo *u = malloc(sizeof *u + length);
    /* The buffer need not be aligned: the log's directory is in memory, where direct I/O is only
     * a word. */
    if (!u || pread(fd, u->old, length, (off_t)offset) != (ssize_t)length)
        die("reading what is about to be replaced");
    u->id = id, u->offset = offset, u->length = length, u->ended = 0;
    pthread_mutex_lock(&undo_lock);
    u->older = undos[device];
    undos[device] = u;
    pthread_mutex_unlock(&undo_lock);
}

static void end_undo(int device, uint64_t id) {
    pthread_mutex_lock(&undo_lock);
    for (struct undo *u = undos[device]; u; u = u->older)
        if (u->id == id)
            u->ended = 1;
    pthread_mutex_unlock(&undo_lock);
}

/* Forgets what a flush has covered: `upto` is what ended before it began (marked 2). */
static void mark_covered(int device) {
    pthread_mutex_lock(&undo_lock);
    for (struct undo *u = undos[device]; u; u = u->older)
        if (u->ended == 1)
            u->ended = 2;
    pthread_mutex_unlock(&undo_lock);
}

static void forget_covered(int device) {
    pthread_mutex_lock(&undo_lock);
    for (struct undo **at = &undos[device]; *at;) {
        struct undo *u = *at;
        if (u->ended == 2) {
            *at = u->older;
            free(u);
        } else {
            at = &u->older;
        }
    }
    pthread_mutex_unlock(&undo_lock);
}

static void revert(int fd, int device, uint64_t seed) {
    pthread_mutex_lock(&undo_lock);
    while (undos[device]) {
        struct undo *u = undos[device];
        for (uint64_t at = 0; at < u->length;) {
            uint64_t page = (u->offset + at) / PAGE, n = (page + 1) * PAGE - (u->offset + at);
            if (n > u->length - at)
                n = u->length - at;
            if (is_lost(seed, device, page) && pwrite(fd, u->old + at, n, (off_t)(u->offset + at)) != (ssize_t)n)
                die("taking a write back");
            at += n;
        }
        undos[device] = u->older;
        free(u);
    }
    pthread_mutex_unlock(&undo_lock);
}

ssize_t pwritev2(int fd, const struct iovec *v, int count, off_t offset, int flags) {
    int device = device_of(fd);
    if (device < 0)
        return real_pwritev2(fd, v, count, offset, flags);
    struct faults *f = &control->faults[device];
    uint64_t length = length_of(v, count);
    pthread_rwlock_rdlock(&write_lock);
    uint64_t id = append(WRITE_BEGIN, device, 0, (uint64_t)offset, length, flags & RWF_DSYNC ? 1 : 0, v, count);
    pause_a_little(id);
    for (int n = 0; n < MAX_BAD; n++) {
        struct bad *b = &control->bad[n];
        if (b->times && (int)b->device == device && (uint64_t)offset <= b->offset &&
            b->offset + b->length <= offset + length)
            b->times = 0;
    }
    int bad = fails(&f->write_in, &f->writes);
    ssize_t done = -1;
    if (!bad || f->write_is_done) {
        if (control->undo)
            note_undo(fd, device, id, (uint64_t)offset, length);
        done = real_pwritev2(fd, v, count, offset, flags & ~RWF_DSYNC);
        if (done != (ssize_t)length)
            die("a write to a recorded device");
        if (control->undo)
            end_undo(device, id);
        uint64_t low = __atomic_load_n(&lowest[device], __ATOMIC_ACQUIRE);
        uint64_t mine = (uint64_t)offset;
        int set = 0;
        while (mine < low && !set)
            set = __atomic_compare_exchange_n(&lowest[device], &low, mine, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    }
    if (bad)
        __atomic_add_fetch(&control->failed_writes, 1, __ATOMIC_ACQ_REL);
    append(WRITE_END, device, id, (uint64_t)offset, length, !bad ? 0 : f->write_is_done ? -EIO - 1000 : -EIO, NULL, 0);
    pthread_rwlock_unlock(&write_lock);
    if (bad) {
        errno = EIO;
        return -1;
    }
    return done;
}

int fallocate(int fd, int mode, off_t offset, off_t length) {
    int device = device_of(fd);
    if (device < 0 || !(mode & FALLOC_FL_PUNCH_HOLE))
        return real_fallocate(fd, mode, offset, length);
    pthread_rwlock_rdlock(&write_lock);
    uint64_t id = append(ZERO_BEGIN, device, 0, (uint64_t)offset, (uint64_t)length, 0, NULL, 0);
    /* Behind the end it is asked only whether it can be done. */
    if (control->undo && offset + length <= devices[device].st_size)
        note_undo(fd, device, id, (uint64_t)offset, (uint64_t)length);
    int done = real_fallocate(fd, mode, offset, length);
    if (control->undo)
        end_undo(device, id);
    append(WRITE_END, device, id, (uint64_t)offset, (uint64_t)length, done == 0 ? 0 : -EIO, NULL, 0);
    pthread_rwlock_unlock(&write_lock);
    return done;
}

static int flush(int fd, int device) {
    struct faults *f = &control->faults[device];
    uint64_t id = append(FLUSH_BEGIN, device, 0, 0, 0, 0, NULL, 0);
    uint64_t low = __atomic_exchange_n(&lowest[device], UINT64_MAX, __ATOMIC_ACQ_REL);
    mark_covered(device);
    pause_a_little(id);
    if ((!f->flush_below || low < f->flush_below) && fails(&f->flush_in, &f->flushes)) {
        pthread_rwlock_wrlock(&write_lock);
        uint64_t seed = mix(control->seed ^ id);
        if (control->revert)
            revert(fd, device, seed);
        __atomic_add_fetch(&control->failed_flushes, 1, __ATOMIC_ACQ_REL);
        /* `offset` and `length` tell what is lost. */
        append(FLUSH_END, device, id, seed, control->lost_percent, -EIO, NULL, 0);
        pthread_rwlock_unlock(&write_lock);
        errno = EIO;
        return -1;
    }
    forget_covered(device);
    append(FLUSH_END, device, id, 0, 0, 0, NULL, 0);
    return 0;
}

int fdatasync(int fd) {
    int device = device_of(fd);
    return device < 0 ? real_fdatasync(fd) : flush(fd, device);
}

ssize_t preadv2(int fd, const struct iovec *v, int count, off_t offset, int flags) {
    int device = device_of(fd);
    if (device >= 0) {
        uint64_t length = length_of(v, count);
        for (int n = 0; n < MAX_BAD; n++) {
            struct bad *b = &control->bad[n];
            if (b->times && (int)b->device == device && (uint64_t)offset < b->offset + b->length &&
                b->offset < offset + length) {
                if (b->times > 0)
                    b->times--;
                __atomic_add_fetch(&control->failed_reads, 1, __ATOMIC_ACQ_REL);
                errno = EIO;
                return -1;
            }
        }
    }
    return real_preadv2(fd, v, count, offset, flags);
}

/* The engine calls files in memory without threads; a recorded device must have many operations
 * in flight. */
int fstatfs(int fd, struct statfs *s) {
    int done = real_fstatfs(fd, s);
    if (done == 0 && control && control->recording && device_of(fd) >= 0)
        s->f_type = EXT4_MAGIC;
    return done;
}

/* Under their other names, and what nobody calls today but must not pass unseen. */
ssize_t preadv64v2(int fd, const struct iovec *v, int count, off_t offset, int flags) {
    return preadv2(fd, v, count, offset, flags);
}
ssize_t pwritev64v2(int fd, const struct iovec *v, int count, off_t offset, int flags) {
    return pwritev2(fd, v, count, offset, flags);
}
int fallocate64(int fd, int mode, off_t offset, off_t length) { return fallocate(fd, mode, offset, length); }
int fstatfs64(int fd, struct statfs64 *s) { return fstatfs(fd, (struct statfs *)s); }
int fsync(int fd) {
    int device = device_of(fd);
    static int (*real)(int);
    if (device >= 0)
        return flush(fd, device);
    if (!real)
        real = dlsym(RTLD_NEXT, "fsync");
    return real(fd);
}
static void unseen(int fd, const char *name) {
    if (device_of(fd) >= 0) {
        errno = ENOSYS;
        die(name);
    }
}
#define UNSEEN(type, name, declared, passed) \
    type name declared { \
        static type(*real) declared; \
        unseen(fd, #name); \
        if (!real) \
            real = dlsym(RTLD_NEXT, #name); \
        return real passed; \
    }
UNSEEN(ssize_t, pwritev, (int fd, const struct iovec *v, int count, off_t offset), (fd, v, count, offset))
UNSEEN(ssize_t, pwritev64, (int fd, const struct iovec *v, int count, off64_t offset), (fd, v, count, offset))
UNSEEN(int, sync_file_range, (int fd, off64_t offset, off64_t count, unsigned flags), (fd, offset, count, flags))
UNSEEN(ssize_t, pwrite64, (int fd, const void *from, size_t length, off64_t offset), (fd, from, length, offset))
UNSEEN(int, ftruncate64, (int fd, off64_t length), (fd, length))
