/* Between ledger.c (counting), attachment.c (the file, and this process's slot in it) and
 * slots.c (whose slot is whose). */
#ifndef STRATA_QUOTA_LEDGER_H
#define STRATA_QUOTA_LEDGER_H

#include "quota.h"

#include <sys/types.h>

struct attachment {
    _Atomic uint32_t state;
    uint32_t slot;
    struct ledger_file *file;
    dev_t device; /* of the file, to find it again by its path */
    ino_t inode;
    bool is_first; /* nobody else lived in the ledger when we came */
    _Atomic int8_t rows[NUM_VENDORS][QUOTA_MOST_DEVICES]; /* 0 not known, else row + 1, or ROW_UNLIMITED */
};

/* This process's attachment to the ledger, made at its first call; NULL where there is no ledger to be had. */
struct attachment *ledger_attach(void);

/* Free the slots of processes that are gone. */
void ledger_sweep(struct attachment *attached);

/* Take a slot, with `open_file`: its lock lasts while that, or the mapping made of it, does. -1 where all are taken, or
 * none can be had, which errno tells from the former (0). */
int slots_take(struct ledger_file *file, int open_file);
/* Free the slots of processes that are gone, but for `own`; returns whether another process lives. Without is_thorough
 * one whose pid is used again, or which nobody has waited for, counts as alive. */
bool slots_sweep(struct ledger_file *file, int open_file, int own, bool is_thorough);

#endif
