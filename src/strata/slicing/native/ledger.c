/* The ledger: what every process of the slice holds, in a file that they all map.
 *
 * Each process writes one word per device, `held[row][slot]`, and nobody else's. There is no total to keep in step:
 * the total is the sum of the words, so that a process killed at any instruction takes exactly its share with it.
 *
 * Reserving n bytes: (0) sum all words, to see whether n fits; (1) add n to the own word; (2) sum all words; (3) keep n
 * if the sum is within the limit, else subtract it again and, if somebody else was between (1) and (3) too, try once more.
 *
 * Never above the limit: take the requests that are granted and not given back at some instant, and of these the one
 * whose (1) came last. All the others' additions precede its (1), hence its (2), and none was subtracted before the
 * instant; its sum therefore held them all, and it was granted only because that sum was within the limit. (1) is a
 * sequentially consistent read-modify-write and (2) reads sequentially consistently, so "precede" is one order for all.
 * A newcomer's slot counts: it raises `slots_used` before its first (1), and (2) reads `slots_used` after (1).
 *
 * Killed between any two of these, a process leaves its word too high, never too low, until its slot is swept
 * (slots.c).
 *
 * Refusals: from its second turn on a request is marked as undecided, in the same words. A refusal stands only after two
 * sums in a row without anybody undecided, after a sweep, or after about 0.1 s of trying (somebody stopped between (1) and
 * (3)). The first turn needs no mark, which would cost a second read-modify-write: it is taken only where (0) has found
 * room, and then (2) finds it, too, unless others took it in between.
 */
#include "ledger.h"
#include "process.h"

#include <time.h>
#include <unistd.h>

#define UNDECIDED (1ull << 52)
#define BYTES (UNDECIDED - 1)
#define MOST_TURNS 2000
#define MOST_LOOKS 16

_Atomic(void (*)(int row)) ledger_reclaim;

/* Never behind the file's end, whoever wrote to it. */
static uint32_t slots_of(struct ledger_file *file) {
    uint32_t slots = atomic_load(&file->slots_used);
    return slots < LEDGER_SLOTS ? slots : LEDGER_SLOTS;
}

static uint64_t sum(struct ledger_file *file, int row, uint64_t *undecided) {
    uint64_t bytes = 0, open = 0;
    uint32_t slots = slots_of(file);
    for (uint32_t slot = 0; slot < slots; slot++) {
        uint64_t word = atomic_load(&file->held[row][slot]);
        bytes += word & BYTES;
        open += word / UNDECIDED;
    }
    *undecided = open;
    return bytes;
}

/* What all slots but `own` hold. */
static inline uint64_t held_by_others(struct ledger_file *file, int row, uint32_t own) {
    uint64_t bytes = 0;
    for (uint32_t slot = 0, slots = slots_of(file); slot < slots; slot++)
        if (slot != own)
            bytes += atomic_load(&file->held[row][slot]) & BYTES;
    return bytes;
}

/* Another look at a full row, sooner or later: racing processes must not keep step with each other. */
static void back_off(unsigned turn) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    for (unsigned again = (unsigned)(now.tv_nsec >> 4 ^ getpid()) & 3; again; again--)
        quota_wait(turn < 16 ? turn : 0);
    quota_wait(turn);
}

QUOTA_SELDOM static bool reserve_again(struct attachment *attached, int row, _Atomic uint64_t *word, uint64_t bytes) {
    struct ledger_file *file = attached->file;
    uint64_t last = ~0ull;
    for (unsigned turn = 0, looks = 0; turn < MOST_TURNS && looks < MOST_LOOKS; turn++) {
        if (turn == 0) {
            if (!ledger_sweep(attached))
                return !quota_limits()->closed;
            void (*reclaim)(int) = atomic_load(&ledger_reclaim);
            if (reclaim)
                reclaim(row);
        }
        uint64_t undecided, limit = atomic_load(&file->rows[row].limit_bytes);
        if (!limit)
            limit = BYTES;
        if (bytes > limit)
            return false;
        atomic_fetch_add(word, bytes + UNDECIDED);
        uint64_t held = sum(file, row, &undecided);
        if (held <= limit) {
            atomic_fetch_sub(word, UNDECIDED);
            return true;
        }
        atomic_fetch_sub(word, bytes + UNDECIDED);
        if (undecided == 1) {
            if (held == last)
                return false;
            last = held;
            looks++;
        }
        back_off(turn);
    }
    return false;
}

QUOTA_SELDOM static bool reserve_without_limit(struct attachment *attached, int row, uint64_t bytes) {
    struct ledger_row *shared = &attached->file->rows[row];
    if (quota_limits()->memory_bytes[atomic_load(&shared->ordinal) % QUOTA_MOST_DEVICES] && !ledger_sweep(attached))
        return !quota_limits()->closed;
    atomic_fetch_add(&attached->file->held[row][attached->slot], bytes);
    return true;
}

bool ledger_try(int row, uint64_t bytes) {
    if (row < 0)
        return row == ROW_UNLIMITED;
    struct attachment *attached = ledger_attach();
    if (__builtin_expect(!attached, 0))
        return !quota_limits()->closed;
    struct ledger_file *file = attached->file;
    _Atomic uint64_t *word = &file->held[row][attached->slot];
    uint64_t limit = atomic_load(&file->rows[row].limit_bytes);
    if (__builtin_expect(!limit, 0))
        return reserve_without_limit(attached, row, bytes);
    if (bytes > limit)
        return false;
    if (!bytes) /* always fits; others' undecided requests may fill the row for a moment, or for long */
        return true;
    uint64_t own = (atomic_load(word) & BYTES) + bytes;
    if (__builtin_expect(own + held_by_others(file, row, attached->slot) <= limit, 1)) {
        own = (atomic_fetch_add(word, bytes) & BYTES) + bytes;
        if (__builtin_expect(own + held_by_others(file, row, attached->slot) <= limit, 1))
            return true;
        atomic_fetch_sub(word, bytes);
    }
    return reserve_again(attached, row, word, bytes);
}

QUOTA_SELDOM bool ledger_refuse(int row) {
    struct attachment *attached = row < 0 ? NULL : ledger_attach();
    if (attached)
        atomic_fetch_add(&attached->file->rows[row].refused, 1);
    return false;
}

void ledger_force(int row, uint64_t bytes) {
    struct attachment *attached = row < 0 ? NULL : ledger_attach();
    if (attached)
        atomic_fetch_add(&attached->file->held[row][attached->slot], bytes);
}

void ledger_release(int row, uint64_t bytes) {
    struct attachment *attached = row < 0 ? NULL : ledger_attach();
    if (attached)
        atomic_fetch_sub(&attached->file->held[row][attached->slot], bytes);
}

uint64_t ledger_limit(int row) {
    struct attachment *attached = row < 0 ? NULL : ledger_attach();
    return attached ? atomic_load(&attached->file->rows[row].limit_bytes) : 0;
}

uint64_t ledger_charged(int row) {
    struct attachment *attached = row < 0 ? NULL : ledger_attach();
    uint64_t undecided;
    return attached ? sum(attached->file, row, &undecided) : 0;
}

uint64_t ledger_used(int row) {
    struct attachment *attached = row < 0 ? NULL : ledger_attach();
    uint64_t undecided;
    if (!attached)
        return 0;
    ledger_sweep(attached);
    return sum(attached->file, row, &undecided);
}

uint32_t ledger_holders(int row, struct quota_holder *holders, uint32_t most) {
    struct attachment *attached = row < 0 ? NULL : ledger_attach();
    uint32_t count = 0, namespace = process_namespace();
    if (!attached || !ledger_sweep(attached))
        return 0;
    struct ledger_file *file = attached->file;
    for (uint32_t slot = 0; slot < slots_of(file); slot++) {
        uint64_t owner = atomic_load(&file->owners[slot]), bytes = atomic_load(&file->held[row][slot]) & BYTES;
        bool is_here = owner != OWNER_FREE && atomic_load(&file->namespaces[slot]) == namespace;
        if (!is_here || !bytes)
            continue;
        if (count < most)
            holders[count] = (struct quota_holder){(uint32_t)OWNER_PID(owner), bytes};
        count++;
    }
    return count;
}
