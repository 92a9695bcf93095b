/* Owners of ledger slots: state, pid and start time in one word, so that one compare-and-swap takes a slot or gives it
 * up. */
#ifndef STRATA_QUOTA_PROCESS_H
#define STRATA_QUOTA_PROCESS_H

#include "quota.h"

#define OWNER_FREE 0ull
#define OWNER_LIVE 1ull
#define OWNER_SWEEPING 2ull

#define OWNER_START_MASK ((1ull << 40) - 1)
#define OWNER(state, pid, start) ((state) | (pid) << 2 | ((start) & OWNER_START_MASK) << 24)
#define OWNER_STATE(owner) ((owner) & 3)
#define OWNER_PID(owner) ((owner) >> 2 & ((1ull << 22) - 1))
#define OWNER_START(owner) ((owner) >> 24)
#define OWNER_AS(owner, state) (((owner) & ~3ull) | (state))

/* This process, as a live owner. */
uint64_t process_self(void);
/* Whether an owner's process has ended. Without is_thorough only what one system call tells: a process whose pid is
 * used again, or which nobody has waited for, then counts as alive. */
bool process_is_gone(uint64_t owner, uint64_t self, bool is_thorough);

#endif
