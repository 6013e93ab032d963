/* Hurts a server from below: loaded before the C library, it lets reads of the tables fail, and sets the wall clock.
 *
 * HURT_READS names a file with a number n: every n-th read of a file in the folder `tables` fails, none if it is 0. For each one
 * that failed, a byte is added to the file of that name with `.failed` at its end.
 * HURT_CLOCK names a file with the seconds by which the wall clock is off.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static long number_in(const char *variable) {
    const char *path = getenv(variable);
    if (!path) return 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    char text[32] = {0};
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    return got > 0 ? strtol(text, NULL, 10) : 0;
}

static int is_of_tables(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return strstr(path, "/tables/") != NULL;
}

static void note_failure(void) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s.failed", getenv("HURT_READS"));
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0) return;
    if (write(fd, "x", 1) != 1) perror("hurt");
    close(fd);
}

ssize_t pread64(int fd, void *buffer, size_t size, off64_t at) {
    static ssize_t (*real)(int, void *, size_t, off64_t);
    static atomic_ulong reads;
    if (!real) real = (ssize_t(*)(int, void *, size_t, off64_t))dlsym(RTLD_NEXT, "pread64");
    long every = number_in("HURT_READS");
    if (every > 0 && is_of_tables(fd) && (atomic_fetch_add(&reads, 1) + 1) % (unsigned long)every == 0) {
        note_failure();
        errno = EIO;
        return -1;
    }
    return real(fd, buffer, size, at);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, time);
    if (result == 0 && clock == CLOCK_REALTIME) time->tv_sec += number_in("HURT_CLOCK");
    return result;
}
