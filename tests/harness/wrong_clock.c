/* Preloaded, it gives a process and its children a wall clock that is wrong by as many seconds as
 * stand, as a 64-bit integer, in the file that WRONG_CLOCK names; other clocks stay as they are.
 * The file is mapped, so the clock of a running process can be stepped. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t zero = 0;
static const volatile int64_t *offset = &zero;

__attribute__((constructor)) static void map_offset(void)
{
    const char *path = getenv("WRONG_CLOCK");
    int fd = path ? open(path, O_RDONLY) : -1;
    void *mapped = fd < 0 ? MAP_FAILED : mmap(NULL, 8, PROT_READ, MAP_SHARED, fd, 0);
    if (mapped != MAP_FAILED)
        offset = mapped;
    if (fd >= 0)
        close(fd);
}

int clock_gettime(clockid_t id, struct timespec *at)
{
    int failed = (int)syscall(SYS_clock_gettime, id, at);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        at->tv_sec += *offset;
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}
