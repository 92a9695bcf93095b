/* Between cuda_pools.c (what pools hold) and cuda_async.c (allocations from them). */
#ifndef STRATA_QUOTA_POOLS_H
#define STRATA_QUOTA_POOLS_H

#include "cuda.h"

#define CHUNK (32ull << 20) /* what drivers let pools grow by */

enum { RESERVED_CURRENT = 5, USED_CURRENT = 7 }; /* CUmemPool_attribute */

struct pool {
    _Atomic(void *) handle; /* NULL: free; GONE: destroyed, with allocations that live on */
    _Atomic uint32_t lock;
    _Atomic uint32_t alone; /* a request that is alone with the pool, */
    _Atomic uint32_t beside; /* or how many that are not */
    _Atomic uint32_t live; /* allocations not freed */
    int32_t row;
    _Atomic uint64_t charged;
};

extern char pools_gone;
#define GONE ((void *)&pools_gone)

static inline void lock(_Atomic uint32_t *word) {
    for (unsigned turn = 0; atomic_exchange_explicit(word, 1, memory_order_acquire); turn++)
        quota_wait(turn);
}

static inline void unlock(_Atomic uint32_t *word) {
    atomic_store_explicit(word, 0, memory_order_release);
}

static inline uint64_t chunks(uint64_t bytes) {
    return (bytes + CHUNK - 1) & ~(CHUNK - 1);
}

/* The record of a pool, of the current one; NULL where none can be kept. */
struct pool *pools_of(void *handle);
struct pool *pools_current(void);
/* The number that marks its pieces, and counts one more of them. */
uint32_t pools_took(struct pool *pool);

bool pools_ask(void *handle, int attribute, uint64_t *value);
/* Charge the pool what it holds now; `reserved` was charged beforehand for a request that the driver has answered.
 * Returns whether more had to be charged than that. */
bool pools_settle(struct pool *pool, uint64_t reserved);

#endif
