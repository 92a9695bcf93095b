/* Owners of ledger slots: state, pid and when the slot was taken, in one word. */
#ifndef STRATA_QUOTA_PROCESS_H
#define STRATA_QUOTA_PROCESS_H

#include "quota.h"

#define OWNER_FREE 0ull
#define OWNER_LIVE 1ull

#define OWNER(state, pid, ticks) ((state) | (pid) << 2 | (ticks) << 24)
#define OWNER_PID(owner) ((owner) >> 2 & ((1ull << 22) - 1))
#define OWNER_TICKS(owner) ((owner) >> 24)

/* This process, as an owner from now on. */
uint64_t process_self(void);
/* The pid namespace of this process, in which its pid means something; 0 where that cannot be known. */
uint32_t process_namespace(void);
/* Whether another process than this one has the owner's pid now; only for owners of this namespace. */
bool process_is_another(uint64_t owner);
/* What an owner does; it is unknown where the namespace is not ours, or /proc shows another one. One that is ending has
 * no memory of its own any more, but the driver may not have taken back all it had. */
enum process_state { PROCESS_UNKNOWN, PROCESS_GONE, PROCESS_ALIVE, PROCESS_ENDING };
enum process_state process_look(uint64_t owner, uint32_t namespace);

#endif
