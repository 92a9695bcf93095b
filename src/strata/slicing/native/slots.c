/* Which slot of the ledger is whose: a process has a lock on its slot's word in the file, and lives while it has.
 *
 * The lock is one of an open file (F_OFD_SETLK, Linux 3.15), which the process keeps by the mapping alone: the kernel
 * lets go of it when the mapping ends, by exit, by SIGKILL or by exec, and no closing of files does (attachment.c). So who
 * lives is told without pids, which containers that share a slice count each for itself, and which are used again.
 *
 * Only who has the lock writes to a slot. Who finds a slot unlocked that is not free, locks it, sets its words to 0, and
 * then the owner; killed in between, it leaves that to the next. A free slot's words are all 0.
 */
#include "ledger.h"
#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#ifndef F_OFD_SETLK
#define F_OFD_SETLK 37
#endif

static bool set_lock(int open_file, uint32_t slot, short type) {
    off_t place = (off_t)(offsetof(struct ledger_file, owners) + sizeof(uint64_t) * slot);
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = place, .l_len = sizeof(uint64_t)};
    return fcntl(open_file, F_OFD_SETLK, &lock) == 0;
}

static uint32_t slots_of(struct ledger_file *file) {
    uint32_t slots = atomic_load(&file->slots_used);
    return slots < LEDGER_SLOTS ? slots : LEDGER_SLOTS;
}

static void clear(struct ledger_file *file, uint32_t slot) {
    for (int row = 0; row < LEDGER_ROWS; row++)
        if (atomic_load(&file->held[row][slot]))
            atomic_store(&file->held[row][slot], 0);
    atomic_store(&file->owners[slot], OWNER_FREE);
}

/* Of a slot that we have locked. */
static bool is_left(struct ledger_file *file, uint32_t slot) {
    uint64_t owner = atomic_load(&file->owners[slot]);
    return owner == OWNER_FREE || !process_is_ending(owner, atomic_load(&file->namespaces[slot]));
}

static bool take(struct ledger_file *file, int open_file, uint32_t slot) {
    if (!set_lock(open_file, slot, F_WRLCK))
        return false;
    if (!is_left(file, slot)) {
        set_lock(open_file, slot, F_UNLCK);
        errno = EAGAIN;
        return false;
    }
    clear(file, slot);
    atomic_store(&file->namespaces[slot], process_namespace());
    atomic_store(&file->owners[slot], process_self());
    uint32_t slots = atomic_load(&file->slots_used);
    while (slots <= slot && !atomic_compare_exchange_weak(&file->slots_used, &slots, slot + 1))
        ;
    return true;
}

int slots_take(struct ledger_file *file, int open_file) {
    for (int ask_all = 0; ask_all < 2; ask_all++)
        for (uint32_t slot = 0; slot < LEDGER_SLOTS; slot++) {
            if (!ask_all && atomic_load(&file->owners[slot]) != OWNER_FREE)
                continue;
            if (take(file, open_file, slot))
                return (int)slot;
            if (errno != EAGAIN && errno != EACCES)
                return -1;
        }
    errno = 0;
    return -1;
}

bool slots_sweep(struct ledger_file *file, int open_file, int own, bool is_thorough) {
    bool has_others = false;
    uint32_t slots = slots_of(file), namespace = is_thorough ? 0 : process_namespace();
    for (uint32_t slot = 0; slot < slots; slot++) {
        uint64_t owner = atomic_load(&file->owners[slot]);
        if (owner == OWNER_FREE || (int)slot == own)
            continue;
        bool is_ours = namespace && atomic_load(&file->namespaces[slot]) == namespace;
        if ((is_ours && process_is_another(owner)) || !set_lock(open_file, slot, F_WRLCK)) {
            has_others = true;
            continue;
        }
        if (is_left(file, slot))
            clear(file, slot);
        else
            has_others = true;
        // Said, not left to close(): a child forked at this moment has the open file too.
        set_lock(open_file, slot, F_UNLCK);
    }
    return has_others;
}
