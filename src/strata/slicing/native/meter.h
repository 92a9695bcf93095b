/* How long a device was at work for this process, by the driver's events.
 *
 * An event behind a launch marks when it ended; from one mark of a stream to the next the device was at work, unless
 * the stream had run dry: then another mark before the launch says when work began again. Launches in quick succession
 * share a mark; a launch after a pause has one of its own, and before the program waits for the device the last launches
 * get theirs. So no kernel's time is taken for another's.
 */
#ifndef STRATA_QUOTA_METER_H
#define STRATA_QUOTA_METER_H

#include "quota.h"

#define METER_MARKS 64

struct mark {
    void *event, *stream;
    uint64_t recorded_ns;
    bool is_begin;
};

struct meter {
    _Atomic uint32_t lock;
    uint32_t head, tail;  /* marks in use: [tail, head) are not known to be over */
    uint32_t uncovered;   /* launches behind the last mark */
    bool is_after_pause;
    void *context, *stream;
    uint64_t launched_ns, charged_ns;
    struct mark marks[METER_MARKS];
};

/* All with the meter locked. Around a launch; is_long: it may take long, as a graph does. meter_before returns whether the
 * device had nothing of this process's to do. */
bool meter_before(struct meter *meter, void *stream, void *context);
void meter_after(struct meter *meter, bool is_long);
/* Mark what was launched, before the program waits for it. */
void meter_cover(struct meter *meter);
/* How long the device was at work since the last call, never longer than the time that went by. */
uint64_t meter_collect(struct meter *meter);
/* Since when a stream has had work that has not ended; 0: there is none. */
uint64_t meter_queued_since_ns(const struct meter *meter, void *stream);
bool meter_is_idle(const struct meter *meter);

#endif
