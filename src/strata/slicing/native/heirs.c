/* Children that were forked from a process of the ledger, and have copies of what it had open.
 *
 * The last copy of a device's descriptor and the last copy of what keeps a slot locked may be closed by two processes, each
 * of which lets go in its own time: a child that ends may still have the device to close when its parent, killed at that
 * moment, unlocks the slot. So a child writes itself down as heir of its parents' slots before it does anything else,
 * and a slot is left only when no heir of it is ending any more. One that lives has closed its copies, by exec or itself:
 * how far it is with that nobody can see, so a slot is not left to others for HEIR_NS from when that was noticed.
 */
#include "ledger.h"
#include "process.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HEIR_NS 50000000ull
#define MOST_PROBES 64u
#define MOST_SLOTS 8

/* Of the processes that this one was forked from, and its own: in memory that a child has a copy of. */
static struct inheritance {
    dev_t device; /* of the ledger, to know it again: programs close descriptors, and open others by their numbers */
    ino_t inode;
    uint32_t slot;
    int descriptor;
} inherited[MOST_SLOTS];
static unsigned num_inherited;
static _Atomic bool is_listening;

/* A free place, or one of a process that is gone. */
static int find_place(struct heirs *heirs, uint64_t self) {
    uint32_t start = (uint32_t)getpid() * 2654435761u;
    for (uint32_t probe = 0; probe < MOST_PROBES; probe++) {
        uint32_t at = (start + probe) % LEDGER_HEIRS;
        uint64_t found = atomic_load(&heirs->owners[at]);
        bool is_free = found == OWNER_FREE || (kill((pid_t)OWNER_PID(found), 0) != 0 && errno == ESRCH);
        if (is_free && atomic_compare_exchange_strong(&heirs->owners[at], &found, self))
            return (int)at;
    }
    return -1;
}

/* In the child, before anything else of its own: only calls of the kernel. */
static void write_down(void) {
    int known = errno;
    for (unsigned at = 0; at < num_inherited && at < MOST_SLOTS; at++) {
        const struct inheritance *from = &inherited[at];
        struct stat found;
        if (syscall(SYS_fstat, from->descriptor, &found) != 0 || found.st_dev != from->device ||
            found.st_ino != from->inode || found.st_size < (off_t)sizeof(struct ledger_file))
            continue;
        struct heirs *heirs = mmap(NULL, sizeof *heirs, PROT_READ | PROT_WRITE, MAP_SHARED, from->descriptor,
                                   offsetof(struct ledger_file, heirs));
        if (heirs == MAP_FAILED)
            continue;
        int place = find_place(heirs, process_self());
        if (place >= 0) {
            atomic_store(&heirs->noticed_ns[place], 0);
            atomic_store(&heirs->slots[place], from->slot + 1);
        }
        munmap(heirs, sizeof *heirs);
    }
    errno = known;
}

void heirs_expect(const struct attachment *attached) {
    if (!atomic_exchange(&is_listening, true))
        pthread_atfork(NULL, NULL, write_down);
    // Of more generations than these the oldest is forgotten.
    inherited[num_inherited++ % MOST_SLOTS] =
        (struct inheritance){attached->device, attached->inode, attached->slot, attached->descriptor};
}

bool heirs_are_done(struct ledger_file *file, uint32_t slot, uint32_t namespace) {
    struct heirs *heirs = &file->heirs;
    bool are_done = true;
    for (uint32_t at = 0; at < LEDGER_HEIRS; at++) {
        uint64_t owner = atomic_load(&heirs->slots[at]) == slot + 1 ? atomic_load(&heirs->owners[at]) : OWNER_FREE;
        if (owner == OWNER_FREE)
            continue;
        enum process_state state = process_look(owner, namespace);
        if (state == PROCESS_GONE)
            continue;
        uint64_t now = quota_now_ns(), noticed = 0;
        bool is_new = atomic_compare_exchange_strong(&heirs->noticed_ns[at], &noticed, now);
        are_done &= state != PROCESS_ENDING && !is_new && now - noticed >= HEIR_NS;
    }
    return are_done;
}

void heirs_forget(struct ledger_file *file, uint32_t slot) {
    for (uint32_t at = 0; at < LEDGER_HEIRS; at++)
        if (atomic_load(&file->heirs.slots[at]) == slot + 1) {
            atomic_store(&file->heirs.slots[at], 0);
            atomic_store(&file->heirs.owners[at], OWNER_FREE);
        }
}
