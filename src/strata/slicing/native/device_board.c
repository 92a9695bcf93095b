#include "device_board.h"
#include "process.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAGIC 0x3344414f42525453ull /* "STRBOAD3" */
#define FORGOTTEN_NS 60000000000ull

enum { UNTRIED, TAKING, TAKEN, NONE = QUOTA_LOST };

struct place {
    _Atomic uint32_t state;
    _Atomic uint32_t seat;
    uint64_t own; /* the process, by a number that no other has */
    struct board *board;
};

static _Atomic(struct place *) places; /* [QUOTA_MOST_DEVICES] */

static struct place *place_of(int device) {
    quota_notice_fork();
    struct place *known = atomic_load_explicit(&places, memory_order_acquire);
    if (!known) {
        struct place *fresh = quota_wiped(sizeof(struct place[QUOTA_MOST_DEVICES]));
        if (fresh && atomic_compare_exchange_strong(&places, &known, fresh))
            known = fresh;
    }
    return known && device >= 0 && device < QUOTA_MOST_DEVICES ? known + device : NULL;
}

static struct board *open_board(uint64_t key, _Atomic uint32_t *state) {
    char path[4096 + 32];
    const char *ledger = quota_limits()->ledger, *slash = strrchr(ledger, '/');
    int folder = slash ? (int)(slash - ledger) : 0;
    // Programs with another layout of seats have a board of another name.
    if (!slash || snprintf(path, sizeof path, "%.*s/device-%016llx.3.board", folder, ledger,
                           (unsigned long long)key) >= (int)sizeof path)
        return NULL;
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (file < 0)
        return NULL;
    struct board *board = MAP_FAILED;
    // Whole, or not at all: a page that a full disk refuses would end the program.
    if (lseek(file, 0, SEEK_END) == (off_t)sizeof(struct board) || fallocate(file, 0, 0, sizeof(struct board)) == 0)
        board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (board == MAP_FAILED)
        return NULL;
    uint64_t none = 0;
    madvise(board, sizeof *board, MADV_DONTFORK);
    if (quota_guard(board, sizeof *board, state) &&
        (atomic_compare_exchange_strong(&board->magic, &none, MAGIC) || none == MAGIC))
        return board;
    quota_unguard(board);
    munmap(board, sizeof *board);
    return NULL;
}

/* A seat whose process was not heard of for a minute is free: a process that is gone wants no time. */
static int take_seat(struct board *board, uint64_t own) {
    uint64_t now = quota_now_ns();
    for (int at = 0; at < BOARD_SEATS; at++) {
        struct seat *seat = &board->seats[at];
        uint64_t owner = atomic_load(&seat->owner), seen = atomic_load(&seat->seen_ns);
        if (owner && seen < now && now - seen < FORGOTTEN_NS)
            continue;
        if (atomic_compare_exchange_strong(&seat->owner, &owner, own)) {
            atomic_store(&seat->seen_ns, now);
            return at;
        }
    }
    return -1;
}

struct board *board_of(int device) {
    struct place *place = place_of(device);
    return place && atomic_load_explicit(&place->state, memory_order_acquire) == TAKEN ? place->board : NULL;
}

struct seat *board_seat(int device, uint64_t key) {
    struct place *place = place_of(device);
    uint32_t untried = UNTRIED;
    if (!place)
        return NULL;
    if (atomic_load_explicit(&place->state, memory_order_acquire) == UNTRIED &&
        atomic_compare_exchange_strong(&place->state, &untried, TAKING)) {
        place->board = open_board(key, &place->state);
        uint64_t named[] = {process_self(), process_namespace(), quota_now_ns()};
        place->own = quota_hash(named, sizeof named);
        int seat = place->board ? take_seat(place->board, place->own) : -1;
        atomic_store(&place->seat, (uint32_t)seat);
        atomic_store_explicit(&place->state, seat >= 0 ? TAKEN : NONE, memory_order_release);
    }
    if (atomic_load_explicit(&place->state, memory_order_acquire) != TAKEN)
        return NULL;
    struct seat *seat = &place->board->seats[atomic_load(&place->seat)];
    if (atomic_load(&seat->owner) == place->own)
        return seat;
    int again = take_seat(place->board, place->own); // it had been quiet for long, and lost it
    if (again < 0)
        return NULL;
    atomic_store(&place->seat, (uint32_t)again);
    return &place->board->seats[again];
}
