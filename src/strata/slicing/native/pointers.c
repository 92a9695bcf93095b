/* What is held, by address or handle: one table per space, in stripes with a lock each, since threads allocate at once.
 * Process-local: a killed process takes its locks with it, a forked child starts with an empty table. */
#include "quota.h"

#include <sys/mman.h>

#define STRIPES 64
#define FIRST_CAPACITY 128
#define OCCUPIED 0x80000000u

struct entry {
    uint64_t address;
    struct quota_piece piece; /* kind has OCCUPIED set */
};

struct stripe {
    _Alignas(64) _Atomic uint32_t lock;
    uint32_t count;
    uint32_t capacity; /* a power of two */
    struct entry *entries;
};

static _Atomic(struct stripe *) stripes;

QUOTA_SELDOM static struct stripe *make_stripes(void) {
    struct stripe *known = NULL, *fresh = quota_wiped(sizeof(struct stripe[NUM_SPACES][STRIPES]));
    if (fresh && atomic_compare_exchange_strong(&stripes, &known, fresh))
        return fresh;
    return known;
}

static inline struct stripe *all_stripes(void) {
    quota_notice_fork();
    struct stripe *known = atomic_load_explicit(&stripes, memory_order_acquire);
    return __builtin_expect(known != NULL, 1) ? known : make_stripes();
}

static uint64_t mix(uint64_t address) {
    address ^= address >> 32;
    return address * 0x9e3779b97f4a7c15ull;
}

static inline struct stripe *locked(enum quota_space space, uint64_t hash) {
    struct stripe *stripe = all_stripes();
    if (!stripe)
        return NULL;
    stripe += space * STRIPES + (hash >> 58);
    for (unsigned turn = 0; atomic_exchange_explicit(&stripe->lock, 1, memory_order_acquire); turn++)
        quota_wait(turn);
    return stripe;
}

static void unlock(struct stripe *stripe) {
    atomic_store_explicit(&stripe->lock, 0, memory_order_release);
}

static uint32_t home(uint64_t hash, uint32_t capacity) {
    return (uint32_t)(hash >> 20) & (capacity - 1);
}

/* The entry of an address, or the free one where it belongs. */
static struct entry *at(const struct stripe *stripe, uint64_t address, uint64_t hash) {
    for (uint32_t index = home(hash, stripe->capacity);; index = (index + 1) & (stripe->capacity - 1)) {
        struct entry *entry = &stripe->entries[index];
        if (!(entry->piece.kind & OCCUPIED) || entry->address == address)
            return entry;
    }
}

QUOTA_SELDOM static bool grow(struct stripe *stripe) {
    struct stripe larger = {.capacity = stripe->capacity ? 2 * stripe->capacity : FIRST_CAPACITY};
    larger.entries = mmap(NULL, larger.capacity * sizeof(struct entry), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0); // not read first, then written
    if (larger.entries == MAP_FAILED)
        return false;
    for (uint32_t index = 0; index < stripe->capacity; index++) {
        struct entry *entry = &stripe->entries[index];
        if (entry->piece.kind & OCCUPIED)
            *at(&larger, entry->address, mix(entry->address)) = *entry;
    }
    if (stripe->entries)
        munmap(stripe->entries, stripe->capacity * sizeof(struct entry));
    stripe->capacity = larger.capacity;
    stripe->entries = larger.entries;
    return true;
}

/* Linear probing without tombstones: entries behind the gap move up unless they are at home already. */
static void close_gap(struct stripe *stripe, uint32_t gap) {
    uint32_t mask = stripe->capacity - 1;
    for (uint32_t index = (gap + 1) & mask; stripe->entries[index].piece.kind & OCCUPIED; index = (index + 1) & mask) {
        uint32_t wanted = home(mix(stripe->entries[index].address), stripe->capacity);
        if (((index - wanted) & mask) >= ((index - gap) & mask)) {
            stripe->entries[gap] = stripe->entries[index];
            gap = index;
        }
    }
    stripe->entries[gap].piece.kind = 0;
    stripe->count--;
}

bool pointers_add(enum quota_space space, uint64_t address, const struct quota_piece *piece, struct quota_piece *older) {
    uint64_t hash = mix(address);
    struct stripe *stripe = locked(space, hash);
    if (!stripe)
        return false;
    bool has_room = (stripe->count + 1) * 4ull <= stripe->capacity * 3ull || grow(stripe);
    if (has_room) {
        struct entry *entry = at(stripe, address, hash);
        if (__builtin_expect(entry->piece.kind & OCCUPIED, 0)) {
            *older = entry->piece;
            older->kind &= ~OCCUPIED;
        } else {
            stripe->count++;
        }
        entry->address = address;
        entry->piece = *piece;
        entry->piece.kind |= OCCUPIED;
    }
    unlock(stripe);
    return has_room;
}

bool pointers_put(enum quota_space space, uint64_t address, struct quota_piece piece) {
    struct quota_piece older;
    return pointers_add(space, address, &piece, &older);
}

static inline bool look_up(enum quota_space space, uint64_t address, struct quota_piece *piece, bool is_taken) {
    uint64_t hash = mix(address);
    struct stripe *stripe = locked(space, hash);
    if (!stripe)
        return false;
    struct entry *entry = stripe->count ? at(stripe, address, hash) : NULL;
    bool is_found = entry && entry->piece.kind & OCCUPIED;
    if (is_found) {
        *piece = entry->piece;
        piece->kind &= ~OCCUPIED;
        if (is_taken)
            close_gap(stripe, (uint32_t)(entry - stripe->entries));
    }
    unlock(stripe);
    return is_found;
}

bool pointers_take(enum quota_space space, uint64_t address, struct quota_piece *piece) {
    return look_up(space, address, piece, true);
}

bool pointers_find(enum quota_space space, uint64_t address, struct quota_piece *piece) {
    return look_up(space, address, piece, false);
}

void pointers_drop_context(enum quota_space space, void *context) {
    for (uint64_t number = 0; number < STRIPES; number++) {
        struct stripe *stripe = locked(space, number << 58);
        if (!stripe)
            return;
        for (uint32_t index = 0; index < stripe->capacity;) {
            struct quota_piece piece = stripe->entries[index].piece;
            if (!(piece.kind & OCCUPIED) || piece.context != context) {
                index++;
                continue;
            }
            // The gap may be filled from behind: the same index is looked at again.
            close_gap(stripe, index);
            ledger_release(piece.row, piece.bytes);
        }
        unlock(stripe);
    }
}
