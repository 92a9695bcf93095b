/* State of one process: a forked child starts without it, since the child has none of its parent's memory. */
#include "quota.h"

#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif
#define MOST_REGIONS 8
#define SHARED_BYTES (64u << 10)

_Atomic bool quota_cannot_wipe;

static struct {
    _Atomic(void *) start;
    size_t bytes;
} regions[MOST_REGIONS];
static _Atomic int known_pid;

static void *wiped_pages(size_t bytes) {
    void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED)
        return NULL;
    if (madvise(start, bytes, MADV_WIPEONFORK) == 0)
        return start;
    for (int at = 0; at < MOST_REGIONS; at++) {
        void *none = NULL;
        if (atomic_compare_exchange_strong(&regions[at].start, &none, start)) {
            regions[at].bytes = bytes;
            atomic_store(&known_pid, (int)getpid());
            atomic_store(&quota_cannot_wipe, true);
            return start;
        }
    }
    munmap(start, bytes);
    return NULL;
}

/* What most programs come to need, in one piece: each start of a program pays for every call of the kernel. */
void *quota_wiped(size_t bytes) {
    static _Atomic(char *) shared;
    static _Atomic size_t given;
    char *start = atomic_load(&shared), *fresh;
    if (!start && (fresh = wiped_pages(SHARED_BYTES)) && atomic_compare_exchange_strong(&shared, &start, fresh))
        start = fresh;
    bytes = (bytes + 63) & ~(size_t)63;
    size_t from = bytes <= SHARED_BYTES ? atomic_fetch_add(&given, bytes) : SHARED_BYTES;
    return start && from + bytes <= SHARED_BYTES ? start + from : wiped_pages(bytes);
}

void quota_notice_fork_slow(void) {
    int pid = (int)getpid(), known = atomic_load(&known_pid);
    if (pid == known || !atomic_compare_exchange_strong(&known_pid, &known, pid))
        return;
    for (int at = 0; at < MOST_REGIONS; at++) {
        void *start = atomic_load(&regions[at].start);
        if (start)
            memset(start, 0, regions[at].bytes);
    }
}

void quota_wait(unsigned turn) {
    if (turn < 16) {
        for (unsigned spin = 0; spin < 8u << (turn / 4); spin++) {
#if defined(__x86_64__)
            __builtin_ia32_pause();
#elif defined(__aarch64__)
            __asm__ volatile("yield");
#endif
        }
    } else if (turn < 64) {
        sched_yield();
    } else {
        nanosleep(&(struct timespec){0, 50000}, NULL);
    }
}
