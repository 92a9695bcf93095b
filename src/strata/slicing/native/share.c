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

double share_own(double own, const double *others, int count) {
    double level, next = 0;
    do { /* who wants less than the level leaves the rest to those who want more */
        double left = 1;
        int num_above = 1;
        level = next;
        for (int at = 0; at < count; at++)
            if (others[at] > level)
                num_above++;
            else
                left -= others[at];
        next = left / num_above;
    } while (next > level);
    return own < level ? own : level;
}

uint64_t share_charged(uint64_t ready_ns, uint64_t now_ns, uint64_t elapsed_ns, uint64_t worked_ns, double share) {
    uint64_t begin = now_ns > elapsed_ns ? now_ns - elapsed_ns : 0;
    uint64_t from = ready_ns > begin ? ready_ns : begin;
    uint64_t next = from + (uint64_t)((double)worked_ns / share);
    return next < now_ns + SHARE_MOST_DEBT_NS ? next : now_ns + SHARE_MOST_DEBT_NS;
}

static uint64_t part_of(const struct seat *seat, uint64_t span_ns) {
    uint32_t part = atomic_load(&seat->part);
    return part ? (uint64_t)((double)span_ns * part / SEAT_WHOLE) : span_ns;
}

uint64_t seat_worked_ns(const struct seat *seat, uint64_t now_ns) {
    if (!atomic_load(&seat->owner))
        return 0;
    uint64_t since = atomic_load(&seat->since_ns), until = atomic_load(&seat->working_until_ns);
    until = until < now_ns ? until : now_ns;
    return atomic_load(&seat->worked_ns) + (since && until > since ? part_of(seat, until - since) : 0);
}

void seat_measured(struct seat *seat, uint64_t now_ns, uint64_t span_ns, uint64_t worked_ns) {
    uint32_t before = atomic_load(&seat->part);
    double part = span_ns > worked_ns ? (double)worked_ns / (double)span_ns : 1;
    double old = before ? before / (double)SEAT_WHOLE : 1;
    double weight = (double)span_ns / (double)(span_ns + SEAT_REMEMBERS_NS);
    atomic_store(&seat->part, 1 + (uint32_t)((old + (part - old) * weight) * (SEAT_WHOLE - 1)));
    atomic_fetch_add(&seat->worked_ns, worked_ns);
    if (atomic_load(&seat->since_ns))
        atomic_store(&seat->since_ns, now_ns);
}

void seat_tell(struct seat *seat, uint64_t now_ns, uint64_t works_ns, uint64_t wants_ns) {
    uint64_t since = atomic_load(&seat->since_ns), until = atomic_load(&seat->working_until_ns);
    until = until < now_ns ? until : now_ns;
    if (since && (!works_ns || until < now_ns)) {
        atomic_store(&seat->since_ns, 0);
        atomic_fetch_add(&seat->worked_ns, until > since ? part_of(seat, until - since) : 0);
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
