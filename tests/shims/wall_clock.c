// Preloaded library that gives one process a separate wall clock. A file contains the start and the
// rate of the clock. Monotonic clocks are unchanged.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS 1000000000LL
#define MILLION 1000000

// State of the clock: at the real time `real_ns` the clock showed `shown_ns`, and since then it gains
// `gain_ppm`. The sequence is odd while the other fields are written.
struct clock_page {
    uint64_t sequence;
    int64_t real_ns, shown_ns, gain_ppm;
};

static const volatile struct clock_page *page;

__attribute__((constructor)) static void map_file(void) {
    const char *path = getenv("LEASEHOLD_TEST_WALL_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        abort();
    void *mapped = mmap(NULL, sizeof *page, PROT_READ, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED)
        abort();
    page = mapped;
    close(file);
}

static int64_t shown_at(int64_t real_ns) {
    for (;;) {
        uint64_t before = __atomic_load_n(&page->sequence, __ATOMIC_ACQUIRE);
        int64_t elapsed = real_ns - page->real_ns;
        int64_t from = page->shown_ns;
        int64_t gain_ppm = page->gain_ppm;
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (before % 2 == 0 && page->sequence == before)
            return from + elapsed + (int64_t)((__int128)elapsed * gain_ppm / MILLION);
    }
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    int is_wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    if (result == 0 && is_wall && page) {
        int64_t shown = shown_at(now->tv_sec * SECOND_NS + now->tv_nsec);
        now->tv_sec = shown / SECOND_NS;
        now->tv_nsec = shown % SECOND_NS;
    }
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec precise;
    int result = clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return result;
}

time_t time(time_t *now) {
    struct timespec precise;
    if (clock_gettime(CLOCK_REALTIME, &precise) != 0)
        return -1;
    if (now)
        *now = precise.tv_sec;
    return precise.tv_sec;
}
