// Loaded with LD_PRELOAD into a server's processes, this records what they have written and not synced, so that
// `power_loss.rs` can take it back: a simulated power failure.
//
// Before a process changes a file below POWER_LOSS_DATA, the bytes and the size that the change replaces are appended to the
// file's journal, in the directory POWER_LOSS_JOURNALS. A successful fsync or fdatasync by any process empties the journal.
//
// The contents of files are lost, their names are not: what was created, renamed or unlinked stays so. A file that was never
// synced is empty after the failure. Not seen, and so counted as synced at once: stdio (`fwrite`), writes to mapped files, and
// what `openat`, `creat` and `__open_2` cut off. PostgreSQL and RabbitMQ need neither for what they promise. Linux with glibc, on 64 bits.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

_Static_assert(sizeof(long) == 8 && sizeof(off_t) == 8, "the system calls below take 64-bit offsets");

// A journal begins with the offset of its end: a process that is killed while it appends leaves nothing that is read.
// Then come records, each followed by the replaced bytes. `power_loss.rs` reads them.
struct record {
    uint64_t offset, replaced, size, written;
};

static char data[PATH_MAX], journals[PATH_MAX];

// Copies, because PostgreSQL overwrites its environment with the title of the process.
__attribute__((constructor)) static void read_settings(void) {
    const char *below = getenv("POWER_LOSS_DATA"), *into = getenv("POWER_LOSS_JOURNALS");
    if (below != NULL && into != NULL) {
        snprintf(journals, sizeof journals, "%s", into);
        snprintf(data, sizeof data, "%s/", below);
    }
}

// A change without a record would make the simulation wrong, so the process must not go on.
static void give_up(const char *what) {
    dprintf(STDERR_FILENO, "power_loss: failed to %s: %s\n", what, strerror(errno));
    abort();
}

// Opens and locks the journal of a file. -1: the file is not below the data directory, is no regular file, or is unlinked.
// Without O_CREAT also: it has no journal.
static int open_journal(int fd, int create) {
    struct statx file;
    char link[64], path[PATH_MAX], name[PATH_MAX + 64];
    if (data[0] == 0 || statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, &file) != 0) return -1;
    if (!S_ISREG(file.stx_mode) || file.stx_nlink == 0) return -1;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) give_up("find the path of a file");
    path[length] = 0;
    if (strncmp(path, data, strlen(data)) != 0) return -1;
    // The number of an inode is used again by the next file, but not with the same time of birth.
    if (!(file.stx_mask & STATX_BTIME)) give_up("find out when a file was created: its file system does not keep that");
    snprintf(name, sizeof name, "%s/%llu-%lld-%u", journals, (unsigned long long)file.stx_ino,
             (long long)file.stx_btime.tv_sec, file.stx_btime.tv_nsec);
    int journal = open(name, O_RDWR | O_CLOEXEC | create, 0600);
    if (journal < 0 && errno == ENOENT && !create) return -1;
    if (journal < 0) give_up("open a journal");
    while (flock(journal, LOCK_EX) != 0)
        if (errno != EINTR) give_up("lock a journal");
    return journal;
}

static void write_all(int fd, const char *bytes, size_t count, off_t offset) {
    while (count > 0) {
        ssize_t written = syscall(SYS_pwrite64, fd, bytes, count, offset);
        if (written <= 0) give_up("write to a journal");
        bytes += written, offset += written, count -= written;
    }
}

// Records what a change of `count` bytes at `offset` replaces, `written` of which are new bytes. Returns the locked journal.
static int record_change(int fd, off_t offset, size_t count, size_t written) {
    int journal = open_journal(fd, O_CREAT);
    if (journal < 0) return -1;
    struct stat file;
    if (fstat(fd, &file) != 0) give_up("read the size of a file");
    if (fcntl(fd, F_GETFL) & O_APPEND && written > 0) offset = file.st_size;
    size_t replaced = offset >= file.st_size ? 0 : (size_t)(file.st_size - offset);
    if (replaced > count) replaced = count;
    struct record record = {offset, replaced, file.st_size, written};
    char *entry = malloc(sizeof record + replaced);
    if (entry == NULL) give_up("allocate memory");
    memcpy(entry, &record, sizeof record);
    // The descriptor may be open for writing only.
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int source = open(link, O_RDONLY | O_CLOEXEC);
    if (source < 0) give_up("open a file again");
    for (size_t done = 0; done < replaced;) {
        ssize_t got = pread(source, entry + sizeof record + done, replaced - done, offset + done);
        if (got <= 0) give_up("read what a write replaces");
        done += got;
    }
    close(source);
    uint64_t end;
    if (pread(journal, &end, sizeof end, 0) != sizeof end) end = sizeof end;
    write_all(journal, entry, sizeof record + replaced, end);
    end += sizeof record + replaced;
    write_all(journal, (char *)&end, sizeof end, 0);
    free(entry);
    return journal;
}

// Unlocks the journal, and empties it first if everything in the file is on disk now.
static void close_journal(int journal, int is_synced) {
    int error = errno;
    if (journal < 0) return;
    if (is_synced && syscall(SYS_ftruncate, journal, 0) != 0) give_up("empty a journal");
    close(journal);
    errno = error;
}

// A write through a descriptor with O_DSYNC or O_SYNC counts as a sync of the whole file.
#define CHANGE(fd, offset, count, written, call)                                                \
    do {                                                                                        \
        int journal = record_change(fd, offset, count, written);                                \
        long result = (call);                                                                   \
        close_journal(journal, journal >= 0 && result >= 0 && fcntl(fd, F_GETFL) & O_DSYNC);    \
        return result;                                                                          \
    } while (0)

static size_t length_of(const struct iovec *parts, int count) {
    size_t length = 0;
    for (int i = 0; i < count; i++) length += parts[i].iov_len;
    return length;
}

ssize_t write(int fd, const void *bytes, size_t count) {
    CHANGE(fd, lseek(fd, 0, SEEK_CUR), count, count, syscall(SYS_write, fd, bytes, count));
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    size_t length = length_of(parts, count);
    CHANGE(fd, lseek(fd, 0, SEEK_CUR), length, length, syscall(SYS_writev, fd, parts, count));
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t offset) {
    CHANGE(fd, offset, count, count, syscall(SYS_pwrite64, fd, bytes, count, offset));
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) {
    size_t length = length_of(parts, count);
    CHANGE(fd, offset, length, length, syscall(SYS_pwritev, fd, parts, count, offset, 0));
}

int ftruncate(int fd, off_t size) {
    CHANGE(fd, size, SIZE_MAX, 0, syscall(SYS_ftruncate, fd, size));
}

int truncate(const char *path, off_t size) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    int result = ftruncate(fd, size), error = errno;
    close(fd);
    errno = error;
    return result;
}

int fallocate(int fd, int mode, off_t offset, off_t count) {
    CHANGE(fd, offset, count, 0, syscall(SYS_fallocate, fd, mode, offset, count));
}

int posix_fallocate(int fd, off_t offset, off_t count) {
    return fallocate(fd, 0, offset, count) == 0 ? 0 : errno;
}

int open(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    int old = flags & O_TRUNC ? syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    int journal = old < 0 ? -1 : record_change(old, 0, SIZE_MAX, 0);
    int fd = syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    close_journal(journal, 0);
    int error = errno;
    if (old >= 0) close(old);
    errno = error;
    return fd;
}

static int sync_file(int fd, long call) {
    int journal = open_journal(fd, 0);
    int result = syscall(call, fd);
    close_journal(journal, result == 0);
    return result;
}

int fsync(int fd) { return sync_file(fd, SYS_fsync); }

int fdatasync(int fd) { return sync_file(fd, SYS_fdatasync); }

// The names of programs that are compiled for large files.
ssize_t pwrite64(int, const void *, size_t, off_t) __attribute__((alias("pwrite")));
ssize_t pwritev64(int, const struct iovec *, int, off_t) __attribute__((alias("pwritev")));
int ftruncate64(int, off_t) __attribute__((alias("ftruncate")));
int truncate64(const char *, off_t) __attribute__((alias("truncate")));
int fallocate64(int, int, off_t, off_t) __attribute__((alias("fallocate")));
int posix_fallocate64(int, off_t, off_t) __attribute__((alias("posix_fallocate")));
int open64(const char *, int, ...) __attribute__((alias("open")));
