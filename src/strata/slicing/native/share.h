/* The law of a share of a device's time, without a clock, a driver or a file: cores.c and meter.c act by it.
 *
 * The bucket is one number: the instant from which the slice has its share again, `ready`. A stretch of work that ended
 * now puts it off to (its begin, or `ready` if later) + work / share, so that work at exactly the share leaves it at now.
 */
#ifndef STRATA_QUOTA_SHARE_H
#define STRATA_QUOTA_SHARE_H

#include "device_board.h"

#define SHARE_BURST_NS 50000000ull       /* how far ahead of its share a slice may be */
#define SHARE_RESUME_NS 20000000ull      /* and how far, once it had to wait: it works in stretches of many turns */
#define SHARE_LAUNCH_WAIT_NS 200000000ull /* the longest that one launch waits */
#define SHARE_MOST_DEBT_NS 20000000000ull /* what was measured wrongly holds nobody up for longer */
#define SHARE_TURN_NS 2070000ull          /* which an H100 and an H200 give a context, */
#define SHARE_SWITCH_NS 165000ull         /* and what passes until the next has its turn: tests/slicing/gpu/programs/turns.py */
#define SHARE_MOST_MISSED_NS 500000000ull /* what a slice makes up for, of what others' turns kept it from */
#define SHARE_QUEUE_NS 100000000ull      /* how much work a stream may have queued before a launch waits */

/* own: this process's seat; NULL: nothing is known of others. Returns the part of the device's time that the slice may
 * have now. is_lent: with what no slice with a claim wants, by priority, then by share. */
double share_of(const struct board *board, const struct seat *own, uint64_t now_ns, bool is_lent);
/* What another had of a stretch: the part in which it was at work, and that in which the device was its own. */
struct part {
    double busy, worked;
};
/* A device gives contexts at work turns: nobody gets more than another who wanted more. Of a stretch in which this
 * process's events span the part `own`, returns the part that was its own work: `own`, unless together with what others
 * had that is more than the whole. Events of work that fits into a turn have no turn of others between them; those of
 * longer work have. */
double share_own(double own, const struct part *others, int count);
/* What of a stretch is own work where `num_others` are at work all along, in turns of a device of NVIDIA's. phase_ns: how
 * long ago the turn began when the stretch did, 0 at the first; it is set on. */
uint64_t share_turns(uint64_t *phase_ns, uint64_t elapsed_ns, int num_others);
/* A stretch of work that ended now, of which the device was this process's for `worked_ns`, and others' for the rest.
 * missed_ns: for how long before it others' turns had kept the process from its share, which it makes up for. */
struct stretch {
    uint64_t elapsed_ns, worked_ns, missed_ns;
};
/* The bucket after a stretch, and what the process has missed then. */
uint64_t share_charged(uint64_t ready_ns, uint64_t now_ns, const struct stretch *stretch, double share);
uint64_t share_missed(uint64_t ready_ns, uint64_t now_ns, const struct stretch *stretch);
/* How long to wait from now on, until no further ahead of the share than so much; 0: not at all. */
uint64_t share_wait_ns(uint64_t ready_ns, uint64_t now_ns, uint64_t ahead_ns);

#endif
