/* What a context takes of its device, for code, stacks and buffers of the driver's own: no call allocates it, so it is
 * charged when the first of a process is made. The size is the device's and driver's; it is looked for once in a slice. */
#ifndef STRATA_QUOTA_CONTEXT_SIZE_H
#define STRATA_QUOTA_CONTEXT_SIZE_H

#include "quota.h"

/* Of struct ledger_row, as fleet/ledger.py names them. */
enum context_trust { UNKNOWN, ASSUMED, GIVEN, MEASURED };

struct context_size {
    uint64_t bytes;
    uint32_t trust;
    bool is_watched; /* NVML has been asked before the context is made, and must be asked behind it */
};

/* Before a device's first context of this process, and, where that has been made, behind it. */
void context_size_before(struct context_size *size, int device, int row);
void context_size_behind(struct context_size *size, int device, int row);

#endif
