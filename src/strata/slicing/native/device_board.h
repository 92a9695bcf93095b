/* Who is at work on a device now, of the processes whose ledgers lie in one folder: a file beside the ledgers, a seat for
 * each process. A device gives contexts turns, so that what a process measures is also the turns of others at work. */
#ifndef STRATA_QUOTA_DEVICE_BOARD_H
#define STRATA_QUOTA_DEVICE_BOARD_H

#include "quota.h"

#define BOARD_SEATS 256
#define SEAT_WHOLE 65536u
#define SEAT_REMEMBERS_NS 2000000000ull /* over how long its part is averaged */

/* At work from since_ns (0: it is not) until at most working_until_ns, before that for busy_ns together, of which the
 * device was its own for worked_ns: by its own account of what it measured, or by the clock where it measures nothing.
 * Of the time since since_ns it had `part` (in SEAT_WHOLE) as far as it knows. It wants the device until wanting_until_ns: it is at work, has to wait, or was at work
 * just now. */
struct seat {
    _Atomic uint64_t owner; /* 0: free */
    _Atomic uint64_t slice;
    _Atomic uint32_t percent; /* of the device's time; 0: no limit */
    _Atomic uint32_t priority;
    _Atomic uint32_t part; /* 0: all of it */
    _Atomic uint64_t since_ns, working_until_ns, busy_ns, worked_ns, wanting_until_ns, seen_ns;
};

struct board {
    _Atomic uint64_t magic;
    uint64_t padding[7];
    struct seat seats[BOARD_SEATS];
};

/* This process's seat for a device, taken at the first call; NULL where there is no board to be had. */
struct seat *board_seat(int device, uint64_t key);
struct board *board_of(int device);
/* What the owner of a seat says, for so long from now on. */
void seat_tell(struct seat *seat, uint64_t now_ns, uint64_t works_ns, uint64_t wants_ns);
/* What the owner has worked of the last span_ns until now, in the place of what the clock says. */
void seat_measured(struct seat *seat, uint64_t now_ns, uint64_t span_ns, uint64_t worked_ns);
/* Whether the owner's work is under way, by what it said. */
bool seat_is_busy(const struct seat *seat, uint64_t now_ns);
/* How long a seat's owners have been at work until now, and for how long of it the device was theirs. */
uint64_t seat_busy_ns(const struct seat *seat, uint64_t now_ns);
uint64_t seat_worked_ns(const struct seat *seat, uint64_t now_ns);

#endif
