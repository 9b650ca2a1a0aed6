// Preloaded library that sets CLOCK_BOOTTIME of one process ahead by the number of seconds in a file,
// in clock_gettime and in /proc/uptime. To the process this is a suspend. All other clocks are
// unchanged.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *ahead_s;

__attribute__((constructor)) static void map_file(void) {
    const char *path = getenv("LEASEHOLD_TEST_BOOTTIME_AHEAD");
    int file = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        abort();
    void *page = mmap(NULL, sizeof *ahead_s, PROT_READ, MAP_SHARED, file, 0);
    if (page == MAP_FAILED)
        abort();
    ahead_s = page;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && clock == CLOCK_BOOTTIME && ahead_s)
        now->tv_sec += *ahead_s;
    return result;
}

// Returns a file with the current content of /proc/uptime.
static int open_uptime(void) {
    struct timespec now;
    char text[64];
    clock_gettime(CLOCK_BOOTTIME, &now);
    int length = snprintf(text, sizeof text, "%lld.%02ld 0.00\n", (long long)now.tv_sec, now.tv_nsec / 10000000);
    int file = memfd_create("uptime", MFD_CLOEXEC);
    if (file < 0 || write(file, text, (size_t)length) != length || lseek(file, 0, SEEK_SET) != 0)
        abort();
    return file;
}

static int open_at(int folder, const char *path, int flags, mode_t mode) {
    if (ahead_s && path && strcmp(path, "/proc/uptime") == 0)
        return open_uptime();
    return (int)syscall(SYS_openat, folder, path, flags, mode);
}

#define MODE(flags) \
    va_list rest; \
    va_start(rest, flags); \
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
    va_end(rest)

int open(const char *path, int flags, ...) {
    MODE(flags);
    return open_at(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    MODE(flags);
    return open_at(AT_FDCWD, path, flags | O_LARGEFILE, mode);
}

int openat(int folder, const char *path, int flags, ...) {
    MODE(flags);
    return open_at(folder, path, flags, mode);
}

int openat64(int folder, const char *path, int flags, ...) {
    MODE(flags);
    return open_at(folder, path, flags | O_LARGEFILE, mode);
}
