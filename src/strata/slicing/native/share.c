#include "share.h"

static bool wants(const struct seat *seat, uint64_t now_ns) {
    return atomic_load(&seat->owner) && atomic_load(&seat->wanting_until_ns) > now_ns;
}

/* Processes of a slice have one claim together: the first seat of each speaks for it. */
static bool is_first_of_slice(const struct board *board, int at, uint64_t now_ns) {
    uint64_t slice = atomic_load(&board->seats[at].slice);
    for (int before = 0; before < at; before++)
        if (wants(&board->seats[before], now_ns) && atomic_load(&board->seats[before].slice) == slice)
            return false;
    return true;
}

double share_of(const struct board *board, const struct seat *own, uint64_t now_ns, bool is_lent) {
    uint32_t percent = atomic_load(&own->percent), priority = atomic_load(&own->priority);
    uint32_t claimed = percent, rivals = percent; /* of all who want time; of those of our priority */
    for (int at = 0; board && is_lent && at < BOARD_SEATS; at++) {
        const struct seat *seat = &board->seats[at];
        if (atomic_load(&seat->slice) == atomic_load(&own->slice) || !wants(seat, now_ns) ||
            !is_first_of_slice(board, at, now_ns))
            continue;
        uint32_t theirs = atomic_load(&seat->percent), rank = atomic_load(&seat->priority);
        if (!theirs || rank > priority) /* one without a limit takes whatever nobody has a claim to */
            return percent / 100.0;
        claimed += theirs;
        rivals += rank == priority ? theirs : 0;
    }
    double free_share = is_lent && claimed < 100 ? (100 - claimed) / 100.0 : 0;
    return percent / 100.0 + free_share * percent / rivals;
}

double share_own(double own, const struct part *others, int count) {
    // A turn of others is as long as it takes to pass the device on, too.
    const double turn = 1 + (double)SHARE_SWITCH_NS / SHARE_TURN_NS;
    double level, next = 0, left = 1;
    do { /* who wants less than the level leaves the rest to those who want more */
        double rest = 1, above = 1;
        level = next;
        for (int at = 0; at < count; at++)
            if (others[at].worked > level)
                above += turn;
            else
                rest -= others[at].worked * turn;
        next = rest / above;
    } while (next > level);
    for (int at = 0; at < count; at++) { /* while both are at work, none gets more than the level */
        double most = others[at].busy * level;
        left -= turn * (others[at].worked < most ? others[at].worked : most);
    }
    return own < left ? own : left;
}

uint64_t share_turns(uint64_t *phase_ns, uint64_t elapsed_ns, int num_others) {
    uint64_t cycle = SHARE_TURN_NS + (uint64_t)num_others * (SHARE_TURN_NS + SHARE_SWITCH_NS) + SHARE_SWITCH_NS;
    uint64_t end = *phase_ns + elapsed_ns, rest = end % cycle;
    uint64_t own = *phase_ns < SHARE_TURN_NS ? *phase_ns : SHARE_TURN_NS; /* what of the first cycle was own before */
    *phase_ns = rest;
    return end / cycle * SHARE_TURN_NS + (rest < SHARE_TURN_NS ? rest : SHARE_TURN_NS) - own;
}

uint64_t share_charged(uint64_t ready_ns, uint64_t now_ns, const struct stretch *stretch, double share) {
    uint64_t since = stretch->elapsed_ns + stretch->missed_ns, begin = now_ns > since ? now_ns - since : 0;
    uint64_t from = ready_ns > begin ? ready_ns : begin;
    uint64_t next = from + (uint64_t)((double)stretch->worked_ns / share);
    return next < now_ns + SHARE_MOST_DEBT_NS ? next : now_ns + SHARE_MOST_DEBT_NS;
}

uint64_t share_missed(uint64_t ready_ns, uint64_t now_ns, const struct stretch *stretch) {
    uint64_t behind = ready_ns < now_ns ? now_ns - ready_ns : 0;
    uint64_t missed = stretch->missed_ns + stretch->elapsed_ns - stretch->worked_ns;
    missed = missed < SHARE_MOST_MISSED_NS ? missed : SHARE_MOST_MISSED_NS;
    return behind < missed ? behind : missed;
}

/* Of a seat at work: for how long of what is under way. */
static uint64_t under_way_ns(const struct seat *seat, uint64_t now_ns) {
    uint64_t since = atomic_load(&seat->since_ns), until = atomic_load(&seat->working_until_ns);
    until = until < now_ns ? until : now_ns;
    return since && until > since ? until - since : 0;
}

static uint64_t part_of(const struct seat *seat, uint64_t span_ns) {
    uint32_t part = atomic_load(&seat->part);
    return part ? (uint64_t)((double)span_ns * part / SEAT_WHOLE) : span_ns;
}

bool seat_is_busy(const struct seat *seat, uint64_t now_ns) {
    return atomic_load(&seat->owner) && atomic_load(&seat->since_ns) && atomic_load(&seat->working_until_ns) > now_ns;
}

uint64_t seat_busy_ns(const struct seat *seat, uint64_t now_ns) {
    return atomic_load(&seat->owner) ? atomic_load(&seat->busy_ns) + under_way_ns(seat, now_ns) : 0;
}

uint64_t seat_worked_ns(const struct seat *seat, uint64_t now_ns) {
    return atomic_load(&seat->owner) ? atomic_load(&seat->worked_ns) + part_of(seat, under_way_ns(seat, now_ns)) : 0;
}

void seat_measured(struct seat *seat, uint64_t now_ns, uint64_t span_ns, uint64_t worked_ns) {
    uint32_t before = atomic_load(&seat->part);
    double part = span_ns > worked_ns ? (double)worked_ns / (double)span_ns : 1;
    double old = before ? before / (double)SEAT_WHOLE : 1;
    double weight = (double)span_ns / (double)(span_ns + SEAT_REMEMBERS_NS);
    atomic_store(&seat->part, 1 + (uint32_t)((old + (part - old) * weight) * (SEAT_WHOLE - 1)));
    atomic_fetch_add(&seat->worked_ns, worked_ns);
    atomic_fetch_add(&seat->busy_ns, under_way_ns(seat, now_ns));
    if (atomic_load(&seat->since_ns))
        atomic_store(&seat->since_ns, now_ns);
}

void seat_tell(struct seat *seat, uint64_t now_ns, uint64_t works_ns, uint64_t wants_ns) {
    uint64_t since = atomic_load(&seat->since_ns), busy = under_way_ns(seat, now_ns);
    if (since && (!works_ns || atomic_load(&seat->working_until_ns) < now_ns)) {
        atomic_store(&seat->since_ns, 0);
        atomic_fetch_add(&seat->busy_ns, busy);
        atomic_fetch_add(&seat->worked_ns, part_of(seat, busy));
        since = 0;
    }
    atomic_store(&seat->working_until_ns, now_ns + works_ns);
    atomic_store(&seat->wanting_until_ns, now_ns + (works_ns > wants_ns ? works_ns : wants_ns));
    atomic_store(&seat->seen_ns, now_ns + works_ns);
    if (works_ns && !since)
        atomic_store(&seat->since_ns, now_ns);
}

uint64_t share_wait_ns(uint64_t ready_ns, uint64_t now_ns, uint64_t ahead_ns) {
    return ready_ns > now_ns + ahead_ns ? ready_ns - now_ns - ahead_ns : 0;
}
