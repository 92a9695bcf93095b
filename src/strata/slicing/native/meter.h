/* How long a device was at work for this process, by the driver's events.
 *
 * An event behind a launch marks when it ended; from one mark of a stream to the next the device was at work, unless
 * the stream had run dry: then another mark before the launch says when work began again. While the device is behind the
 * program, launches share a mark. Once the last mark is over, or the program did something else, those that no mark covers
 * may be over too, nobody knows since when: unless the next mark was reached later than it was recorded, which shows that
 * they still ran, they are charged what launches take on the average. Of short launches that the device waits for, again
 * and again, some at random have no mark at all, since marks cost the program more than its launches: more of them while the
 * slice uses less than its share. They are charged the average, too, and of a long one among them what it worked on when the
 * next mark was recorded; so are those between whose marks the program was held up.
 */
#ifndef STRATA_QUOTA_METER_H
#define STRATA_QUOTA_METER_H

#include "quota.h"

#define METER_MARKS 64

struct mark {
    void *event, *stream;
    uint64_t recorded_ns, returned_ns; /* before the call and behind it */
    uint64_t launch_ns; /* what the call of the launch behind it took, if the device waited for that */
    uint64_t held_ns;   /* since the mark before, for how long calls were held up, and the device idle perhaps */
    uint32_t launches;  /* since the mark before */
    bool is_late;       /* recorded some time behind them: the device may have run dry meanwhile */
    bool is_sparse;     /* the device waited for some of those launches, and was idle in between */
    bool is_begin;      /* the launch behind it is measured by itself */
};

struct meter {
    _Atomic uint32_t lock;
    uint32_t head, tail; /* marks in use: [tail, head) are not known to be over */
    uint32_t known;      /* a mark that is over, reached at known_ns or later: what tells when others were */
    uint32_t uncovered;  /* launches behind the last mark */
    uint32_t skips, most_skipped, random; /* skips: so many may have no mark, drawn at random */
    bool is_begun;       /* the launch that is being made has a mark before it */
    bool is_skipped;     /* and this: none at all */
    bool is_sparse;      /* of those behind the last mark, too */
    void *context, *stream;
    uint64_t launched_ns, charged_ns;
    uint64_t average_ns; /* a launch's time */
    uint64_t known_ns;
    struct mark marks[METER_MARKS];
};

struct meter_launch {
    void *stream, *context;
    bool is_long;
    bool is_within; /* the slice uses less than its share, so that nothing hangs on how much */
};

/* All with the meter locked. Around a launch; is_long: it may take long, as a graph does. meter_before returns whether the
 * device had nothing of this process's to do. */
bool meter_before(struct meter *meter, uint64_t now, const struct meter_launch *launch);
void meter_after(struct meter *meter, bool is_long);
/* Mark what was launched, before the program waits for it. */
void meter_cover(struct meter *meter);
/* How long the device was at work since the last call, never longer than the time that went by. */
uint64_t meter_collect(struct meter *meter);
/* Since when a stream has had work that has not ended; 0: there is none. */
uint64_t meter_queued_since_ns(const struct meter *meter, void *stream);
/* No mark is waited for. */
bool meter_is_reached(const struct meter *meter);
bool meter_is_idle(const struct meter *meter);

#endif
