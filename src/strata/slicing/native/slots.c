/* Which slot of the ledger is whose: a process has a lock on its slot's word in the file, and lives while it has.
 *
 * The lock is one of an open file (F_OFD_SETLK, Linux 3.15), which the process has both mapped and open: the kernel lets
 * go of it when the mapping and every copy of what keeps it open (attachment.c) have ended, by exit, by SIGKILL or by exec.
 * Forked children inherit that as they inherit the device's descriptors, and the driver frees memory with the last copy of
 * those: a slot of a process that is gone counts until its children are (too long where one has closed the device alone),
 * and for as long as one of them is still closing what it had (heirs.c).
 * So who lives is told without pids, which containers that share a slice count each for itself, and which are used again.
 *
 * Only who has the lock writes to a slot. Who finds a slot unlocked that is not free, locks it, sets its words to 0, and
 * then the owner; killed in between, it leaves that to the next. A free slot's words are all 0.
 */
#include "ledger.h"
#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#define CUT_TURNS 20000 // some 2 s: whoever takes a slot may have to wait for a CPU between its lock and its name

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
    // Rows are taken in order, and before anything is held in them.
    for (int row = 0; row < LEDGER_ROWS && atomic_load(&file->rows[row].key); row++)
        if (atomic_load(&file->held[row][slot]))
            atomic_store(&file->held[row][slot], 0);
    if (atomic_load(&file->owners[slot]) != OWNER_FREE)
        heirs_forget(file, slot);
    atomic_store(&file->owners[slot], OWNER_FREE);
}

/* Of a slot that we have locked. */
static bool is_left(struct ledger_file *file, uint32_t slot) {
    uint64_t owner = atomic_load(&file->owners[slot]);
    uint32_t namespace = atomic_load(&file->namespaces[slot]);
    return owner == OWNER_FREE || (process_look(owner, namespace) != PROCESS_ENDING && heirs_are_done(file, slot, namespace));
}

static bool take(struct ledger_file *file, int open_file, uint32_t slot, uint32_t namespace) {
    if (!set_lock(open_file, slot, F_WRLCK))
        return false;
    if (!is_left(file, slot)) {
        set_lock(open_file, slot, F_UNLCK);
        errno = EAGAIN;
        return false;
    }
    clear(file, slot);
    atomic_store(&file->namespaces[slot], namespace);
    atomic_store(&file->owners[slot], process_self());
    uint32_t slots = atomic_load(&file->slots_used);
    while (slots <= slot && !atomic_compare_exchange_weak(&file->slots_used, &slots, slot + 1))
        ;
    return true;
}

/* A slot that is locked and free for long: whoever has it was known to the file before that was cut short. */
static bool was_cut(struct ledger_file *file, int open_file, uint32_t slot) {
    for (unsigned turn = 0; turn < CUT_TURNS; turn++) {
        if (atomic_load(&file->owners[slot]) != OWNER_FREE)
            return false;
        if (set_lock(open_file, slot, F_WRLCK)) {
            set_lock(open_file, slot, F_UNLCK);
            return false;
        }
        quota_wait(turn);
    }
    return true;
}

int slots_take(struct ledger_file *file, int open_file, uint32_t namespace) {
    for (int ask_all = 0; ask_all < 2; ask_all++) {
        for (uint32_t slot = 0; slot < LEDGER_SLOTS; slot++) {
            uint64_t owner = atomic_load(&file->owners[slot]);
            if (!ask_all && owner != OWNER_FREE)
                continue;
            if (take(file, open_file, slot, namespace))
                return (int)slot;
            if (errno != EAGAIN && errno != EACCES)
                return -1;
            if (owner == OWNER_FREE && was_cut(file, open_file, slot)) {
                errno = ESTALE;
                return -1;
            }
        }
    }
    errno = 0;
    return -1;
}

/* Free slots at the end are not looked at any more. Their lock is had while the mark falls: who takes one of them has to
 * have it before, and reads the mark after. */
static void lower_mark(struct ledger_file *file, int open_file) {
    for (uint32_t slots = slots_of(file); slots; slots--) {
        uint32_t last = slots - 1, known = slots;
        if (atomic_load(&file->owners[last]) != OWNER_FREE || !set_lock(open_file, last, F_WRLCK))
            return;
        bool is_lower = atomic_load(&file->owners[last]) == OWNER_FREE &&
                        atomic_compare_exchange_strong(&file->slots_used, &known, last);
        set_lock(open_file, last, F_UNLCK);
        if (!is_lower)
            return;
    }
}

bool slots_sweep(struct ledger_file *file, int open_file, int own, uint32_t namespace, uint32_t most_others) {
    uint32_t slots = slots_of(file), others = 0;
    // From another place each time, so that what one leaves unlooked at is another's.
    for (uint32_t at = 0, start = (uint32_t)getpid(); at < slots && others < most_others; at++) {
        uint32_t slot = (start + at) % slots;
        uint64_t owner = atomic_load(&file->owners[slot]);
        if (owner == OWNER_FREE || (int)slot == own)
            continue;
        bool is_ours = namespace && atomic_load(&file->namespaces[slot]) == namespace;
        if ((is_ours && process_is_another(owner)) || !set_lock(open_file, slot, F_WRLCK)) {
            others++;
            continue;
        }
        if (is_left(file, slot))
            clear(file, slot);
        else
            others++;
        // Said, not left to close(): a child forked at this moment has the open file too.
        set_lock(open_file, slot, F_UNLCK);
    }
    lower_mark(file, open_file);
    return others > 0;
}
