// Sets CLOCK_BOOTTIME of one process ahead, by the seconds that are written into a file: a suspend,
// as the process sees it. All other clocks are left alone. To be preloaded.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *ahead_s;

__attribute__((constructor)) static void map_file(void) {
    const char *path = getenv("LEASEHOLD_TEST_BOOTTIME_AHEAD");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
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
