/* Loaded before the C library into the processes of a run: a disk that is full or slow, and a clock that was
 * set. A page of memory that the drill shares with them says which; see shim.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct control {
    int32_t full;
    int32_t slow_ms;
    int64_t clock_ms;
};

static volatile struct control *control;
static const char *folder;
static int (*real_clock_gettime)(clockid_t, struct timespec *);
static int (*real_gettimeofday)(struct timeval *, void *);
static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static ssize_t (*real_writev)(int, const struct iovec *, int);
static int (*real_fsync)(int);

__attribute__((constructor)) static void begin(void) {
    real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    real_gettimeofday = dlsym(RTLD_NEXT, "gettimeofday");
    real_write = dlsym(RTLD_NEXT, "write");
    real_pwrite = dlsym(RTLD_NEXT, "pwrite64");
    real_writev = dlsym(RTLD_NEXT, "writev");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    folder = getenv("FOREBAY_DRILL_DISK");
    const char *path = getenv("FOREBAY_DRILL_CONTROL");
    if (!folder || !path) return;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    void *page = mmap(NULL, sizeof(struct control), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (page != MAP_FAILED) control = page;
}

/* Whether a write to fd must fail; a slow disk has delayed it by then. */
static int refused(int fd) {
    char link[64], path[4096];
    struct stat about;
    if (!control || (!control->full && !control->slow_ms)) return 0;
    if (fstat(fd, &about) || !S_ISREG(about.st_mode)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    if (strncmp(path, folder, strlen(folder))) return 0;
    if (control->slow_ms) usleep(1000 * control->slow_ms);
    return control->full;
}

ssize_t write(int fd, const void *data, size_t size) {
    if (size && refused(fd)) return errno = ENOSPC, -1;
    return real_write(fd, data, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    if (size && refused(fd)) return errno = ENOSPC, -1;
    return real_pwrite(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off_t at) { return pwrite(fd, data, size, at); }

ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (refused(fd)) return errno = ENOSPC, -1;
    return real_writev(fd, parts, count);
}

int fsync(int fd) {
    refused(fd);
    return real_fsync(fd);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int status = real_clock_gettime(clock, now);
    int64_t step_ms = control ? control->clock_ms : 0;
    if (!status && step_ms && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t ns = now->tv_nsec + (step_ms % 1000) * 1000000;
        now->tv_sec += step_ms / 1000 + (ns >= 1000000000) - (ns < 0);
        now->tv_nsec = ns >= 1000000000 ? ns - 1000000000 : ns < 0 ? ns + 1000000000 : ns;
    }
    return status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    int status = real_gettimeofday(now, zone);
    if (!status && !clock_gettime(CLOCK_REALTIME, &exact)) {
        now->tv_sec = exact.tv_sec;
        now->tv_usec = exact.tv_nsec / 1000;
    }
    return status;
}

time_t time(time_t *out) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (out) *out = exact.tv_sec;
    return exact.tv_sec;
}
