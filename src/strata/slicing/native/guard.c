/* Files that we have mapped may be cut short by whoever can write to them, and then a touch of them ends the program
 * (SIGBUS). What was cut becomes private memory instead, and its user is told that it is lost. */
#include "quota.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MOST_REGIONS (QUOTA_MOST_DEVICES + 1)

struct region {
    _Atomic(char *) start;
    size_t bytes;
    _Atomic uint32_t *state;
};

static _Atomic(struct region *) regions; /* [MOST_REGIONS]; a child has none of its parent's */
static struct sigaction before;
static _Atomic bool is_installed;

static void on_bus_error(int signal, siginfo_t *info, void *context) {
    static const char line[] = "strata-quota: a ledger was cut short: from now on it counts for nothing\n";
    char *at = info->si_addr;
    struct region *all = atomic_load(&regions);
    for (int number = 0; all && number < MOST_REGIONS; number++) {
        char *start = atomic_load(&all[number].start);
        if (!start || at < start || at >= start + all[number].bytes)
            continue;
        mmap(start, all[number].bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        atomic_store(all[number].state, QUOTA_LOST);
        ssize_t written = write(STDERR_FILENO, line, sizeof line - 1);
        (void)written;
        return;
    }
    // Not ours: as if we were not here. The fault comes again where there was no handler.
    if (before.sa_flags & SA_SIGINFO)
        before.sa_sigaction(signal, info, context);
    else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
        before.sa_handler(signal);
    else
        sigaction(SIGBUS, &before, NULL);
}

bool quota_guard(void *start, size_t bytes, _Atomic uint32_t *state) {
    quota_notice_fork();
    struct region *known = atomic_load(&regions);
    if (!known) {
        struct region *fresh = quota_wiped(sizeof(struct region[MOST_REGIONS]));
        if (fresh && atomic_compare_exchange_strong(&regions, &known, fresh))
            known = fresh;
    }
    for (int number = 0; known && number < MOST_REGIONS; number++) {
        char *none = NULL;
        if (atomic_load(&known[number].start))
            continue;
        known[number].bytes = bytes;
        known[number].state = state;
        if (!atomic_compare_exchange_strong(&known[number].start, &none, start))
            continue;
        if (!atomic_exchange(&is_installed, true)) {
            struct sigaction ours = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
            sigaction(SIGBUS, &ours, &before);
        }
        return true;
    }
    return false;
}

void quota_unguard(void *start) {
    struct region *all = atomic_load(&regions);
    for (int number = 0; all && number < MOST_REGIONS; number++) {
        char *known = start;
        atomic_compare_exchange_strong(&all[number].start, &known, NULL);
    }
}
