#include "graph_footprint.h"

#include <string.h>
#include <sys/mman.h>

#define PAGE (2ull << 20)
#define FIRST_CAPACITY 254 /* a page of 4 KiB with the header */

struct range {
    uint64_t start, end;
};

struct footprint {
    uint64_t bytes; /* that no range was left for */
    uint32_t count, capacity;
    struct range ranges[]; /* apart, by start */
};

static size_t size_of(uint32_t capacity) {
    return sizeof(struct footprint) + capacity * sizeof(struct range);
}

static struct footprint *grown(struct footprint *old) {
    if (old && old->count < old->capacity)
        return old;
    uint32_t capacity = old ? 2 * old->capacity : FIRST_CAPACITY;
    struct footprint *new = mmap(NULL, size_of(capacity), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (new == MAP_FAILED)
        return NULL;
    if (old) {
        memcpy(new, old, size_of(old->count));
        footprint_end(old);
    }
    new->capacity = capacity;
    return new;
}

struct footprint *footprint_add(struct footprint *footprint, uint64_t address, uint64_t bytes) {
    struct range added = {address & ~(PAGE - 1), (address + bytes + PAGE - 1) & ~(PAGE - 1)};
    struct footprint *found = grown(footprint);
    if (!found) {
        if (footprint) /* too much is charged then, never too little */
            footprint->bytes += added.end - added.start;
        return footprint;
    }
    uint32_t first = 0, last;
    while (first < found->count && found->ranges[first].end < added.start)
        first++;
    for (last = first; last < found->count && found->ranges[last].start <= added.end; last++) {
        if (found->ranges[last].start < added.start)
            added.start = found->ranges[last].start;
        if (found->ranges[last].end > added.end)
            added.end = found->ranges[last].end;
    }
    memmove(&found->ranges[first + 1], &found->ranges[last], (found->count - last) * sizeof added);
    found->ranges[first] = added;
    found->count += 1 + first - last;
    return found;
}

uint64_t footprint_bytes(const struct footprint *footprint) {
    uint64_t bytes = footprint ? footprint->bytes : 0;
    for (uint32_t at = 0; footprint && at < footprint->count; at++)
        bytes += footprint->ranges[at].end - footprint->ranges[at].start;
    return bytes;
}

void footprint_end(struct footprint *footprint) {
    if (footprint)
        munmap(footprint, size_of(footprint->capacity));
}
