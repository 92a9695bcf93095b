/* Between ledger.c (counting) and seat.c (the file, and this process's place in it). */
#ifndef STRATA_QUOTA_LEDGER_H
#define STRATA_QUOTA_LEDGER_H

#include "quota.h"

struct ledger_seat {
    _Atomic uint32_t state;
    uint32_t slot;
    uint64_t self; /* the owner word of our slot */
    struct ledger_file *file;
    bool is_first; /* nobody else lived in the ledger when we came */
    _Atomic int8_t rows[NUM_VENDORS][QUOTA_MOST_DEVICES]; /* 0 not known, else row + 1, or ROW_UNLIMITED */
};

/* This process's place in the ledger, taken at its first call; NULL where there is no ledger to be had. */
struct ledger_seat *ledger_seat(void);

/* At the start of a program: what this process held before exec ended with that, whether or not it allocates again. */
void ledger_end_former_self(void);

/* Free the slots of processes that are gone; returns whether another process lives. */
bool ledger_sweep(struct ledger_file *file, uint64_t self, bool is_thorough);
/* Take a slot, after ending what an earlier image of this very process left; -1 where all are taken. */
int ledger_take_slot(struct ledger_file *file, uint64_t self);

#endif
