/* Between ledger.c (counting), attachment.c (the file, and this process's slot in it) and
 * slots.c (whose slot is whose), heirs.c (forked children). */
#ifndef STRATA_QUOTA_LEDGER_H
#define STRATA_QUOTA_LEDGER_H

#include "quota.h"

#include <sys/types.h>

struct attachment {
    _Atomic uint32_t state;
    uint32_t slot;
    struct ledger_file *file;
    dev_t device; /* of the file, to know it again */
    ino_t inode;
    int descriptor; /* to sweep by, also where the file was removed; the program may have closed it. Without locks: those
                     * of a sweep in which we are killed would last as long as our children, who have copies */
    _Atomic uint32_t sweeping;
    bool is_first; /* nobody else lived in the ledger when we came */
    _Atomic int8_t rows[NUM_VENDORS][QUOTA_MOST_DEVICES]; /* 0 not known, else row + 1, or ROW_UNLIMITED */
};

/* This process's attachment to the ledger, made at its first call; NULL where there is no ledger to be had. */
enum { EMPTY, ATTACHING, ATTACHED, REFUSED = QUOTA_LOST };
extern _Atomic(struct attachment *) ledger_attachment;
struct attachment *ledger_attach_slow(void);
static inline struct attachment *ledger_attach(void) {
    quota_notice_fork();
    struct attachment *attached = atomic_load_explicit(&ledger_attachment, memory_order_acquire);
    if (__builtin_expect(attached && atomic_load_explicit(&attached->state, memory_order_acquire) == ATTACHED, 1))
        return attached;
    return ledger_attach_slow();
}

/* Free the slots of processes that are gone. False: the file was cut short, and nothing in it is true any more. */
bool ledger_sweep(struct attachment *attached);

/* Take a slot, with `open_file`: its lock lasts while that, a copy of it, or the mapping made of it, does. -1 where all
 * are taken, or none can be had, which errno tells from the former (0). */
int slots_take(struct ledger_file *file, int open_file, uint32_t namespace);
/* Free the slots of processes that are gone, but for `own`, until as many others were seen that live; returns whether
 * any does. Those of our pid namespace are told by their pid alone, so that one whose pid is used again, or which nobody
 * has waited for, counts as alive; namespace 0: all are looked at closely. */
bool slots_sweep(struct ledger_file *file, int open_file, int own, uint32_t namespace, uint32_t most_others);

/* A slot was taken: children that are forked from now on write themselves down as its heirs. */
void heirs_expect(const struct attachment *attached);
/* Of a slot that nobody has locked: whether no heir can have a device of its open any more; then they are forgotten. */
bool heirs_are_done(struct ledger_file *file, uint32_t slot, uint32_t namespace);
void heirs_forget(struct ledger_file *file, uint32_t slot);

#endif
