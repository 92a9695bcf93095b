/* Times the driver's calls by the door CUDA's run time takes: dlopen, dlsym, cuGetProcAddress.
 *
 *   bench calls ROUNDS   two numbers a round, of processor time: ns an allocation and its free, ns a call the library leaves alone
 *   bench start COUNT    ms until COUNT processes have allocated, all of them still there, and ms of processor time that
 *                        they took together, to their ends
 *   bench one            what `start` starts: allocates, says so with a byte, goes when its input is closed
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long CUdeviceptr;

enum { LIVE = 1024, CALLS = 200000 };

static int (*alloc)(CUdeviceptr *, size_t);
static int (*release)(CUdeviceptr);
static int (*untouched)(void *);

extern char **environ;

static void fail(const char *what) {
    fprintf(stderr, "bench: %s\n", what);
    exit(1);
}

static double now_ns(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return 1e9 * (double)at.tv_sec + (double)at.tv_nsec;
}

static void open_driver(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver)
        fail(dlerror());
    int (*find)(const char *, void **, int, uint64_t, int *);
    *(void **)&find = dlsym(driver, "cuGetProcAddress_v2");
    if (!find)
        fail("no cuGetProcAddress_v2");
    int (*init)(unsigned), status;
    if (find("cuInit", (void **)&init, 12040, 0, &status) || init(0))
        fail("no cuInit");
    if (find("cuMemAlloc", (void **)&alloc, 12040, 0, &status) ||
        find("cuMemFree", (void **)&release, 12040, 0, &status) ||
        find("cuStreamQuery", (void **)&untouched, 12040, 0, &status))
        fail("a function is not there");
}

/* Of this process alone: what else runs on the machine takes no part. */
static double processor_ns(void) {
    struct timespec at;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &at);
    return 1e9 * (double)at.tv_sec + (double)at.tv_nsec;
}

static void calls(int rounds) {
    static CUdeviceptr held[LIVE];
    for (int i = 0; i < LIVE; i++)
        if (alloc(&held[i], 4096))
            fail("out of memory");
    for (int round = 0; round < rounds; round++) {
        double start = processor_ns();
        for (int i = 0; i < CALLS; i++) {
            CUdeviceptr *one = &held[(unsigned)i * 617u % LIVE]; /* not the order they were made in */
            if (release(*one) || alloc(one, 4096))
                fail("out of memory");
        }
        double middle = processor_ns();
        for (int i = 0; i < CALLS; i++)
            untouched(NULL);
        double end = processor_ns();
        printf("%.3f %.3f\n", (middle - start) / CALLS, (end - middle) / CALLS);
    }
    for (int i = 0; i < LIVE; i++)
        release(held[i]);
}

static void start(int count) {
    int ready[2], stay[2];
    if (pipe(ready) || pipe(stay))
        fail("no pipe");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, stay[0], 0);
    posix_spawn_file_actions_adddup2(&actions, ready[1], 1);
    for (int i = 0; i < 2; i++) {
        posix_spawn_file_actions_addclose(&actions, ready[i]);
        posix_spawn_file_actions_addclose(&actions, stay[i]);
    }
    char *arguments[] = {"bench", "one", NULL};
    double begun = now_ns();
    for (int i = 0; i < count; i++) {
        pid_t child;
        if (posix_spawn(&child, "/proc/self/exe", &actions, NULL, arguments, environ))
            fail("a process does not start");
    }
    close(ready[1]);
    char byte;
    for (int i = 0; i < count; i++)
        if (read(ready[0], &byte, 1) != 1)
            fail("a process ended early");
    double elapsed_ms = (now_ns() - begun) / 1e6;
    close(stay[1]);
    while (wait(NULL) > 0)
        ;
    struct rusage all;
    getrusage(RUSAGE_CHILDREN, &all);
    double processor_ms = 1e3 * (double)(all.ru_utime.tv_sec + all.ru_stime.tv_sec) +
                          1e-3 * (double)(all.ru_utime.tv_usec + all.ru_stime.tv_usec);
    printf("%.3f %.3f\n", elapsed_ms, processor_ms);
}

static void one(void) {
    CUdeviceptr held;
    open_driver();
    if (alloc(&held, 4096))
        fail("out of memory");
    char byte = '.';
    if (write(1, &byte, 1) != 1)
        fail("nobody listens");
    while (read(0, &byte, 1) > 0)
        ;
    release(held);
}

int main(int count, char **arguments) {
    if (count == 3 && strcmp(arguments[1], "calls") == 0) {
        open_driver();
        calls(atoi(arguments[2]));
    } else if (count == 3 && strcmp(arguments[1], "start") == 0) {
        start(atoi(arguments[2]));
    } else if (count == 2 && strcmp(arguments[1], "one") == 0) {
        one();
    } else {
        fail("calls ROUNDS | start COUNT | one");
    }
    return 0;
}
