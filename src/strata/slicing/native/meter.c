#include "meter.h"

#include "cores.h"

#define MOST_UNCOVERED 16u
#define MOST_SKIPPED 10u   /* without a mark, of a program that the device waits for: two cost a launch 11 us on an H100 */
#define MOST_SKIPPED_WITHIN 40u /* and while it uses less than its share */
#define SHORT_NS 50000u    /* launches so short, and so soon behind each other, that marks would slow the program down */
#define SOON_NS 100000u
#define LONG_NS 1000000u   /* so much of a launch counts in the average: longer ones show themselves where no mark does */
#define REMEMBERS 64       /* launches that an average goes back */
#define LATER_NS 20000u    /* a mark that the device reaches so long behind the call is behind work that was under way */
#define HELD_NS 20000u     /* two marks cost a launch 11 us on an H100: a call that took so long for one was held up */
#define CLOCK_DRIFT 1e-4   /* by how much the device's clock may run faster than ours */

enum { NOT_READY = 600 };

static struct quota_call create = {"cuEventCreate", CUDA, NULL};
static struct quota_call destroy = {"cuEventDestroy_v2", CUDA, NULL};
static struct quota_call record = {"cuEventRecord", CUDA, NULL};
static struct quota_call query = {"cuEventQuery", CUDA, NULL};
static struct quota_call elapsed = {"cuEventElapsedTime", CUDA, NULL};

static struct mark *mark_at(struct meter *meter, uint32_t number) {
    return &meter->marks[number % METER_MARKS];
}

/* Events end with their context, or belong to one that is not the current one any more. */
static void forget(struct meter *meter, void *context) {
    int (*end)(void *) = (int (*)(void *))quota_call(&destroy);
    for (uint32_t number = 0; number < METER_MARKS; number++) {
        if (end && meter->marks[number].event)
            end(meter->marks[number].event);
        meter->marks[number].event = NULL;
    }
    meter->head = meter->tail = 1; // no mark has the number 0
    meter->known = meter->uncovered = 0;
    meter->is_sparse = false;
    meter->known_ns = 0;
    meter->context = context;
}

static uint64_t span_ns(struct meter *meter, uint32_t from, uint32_t to) {
    int (*between)(float *, void *, void *) = (int (*)(float *, void *, void *))quota_call(&elapsed);
    void *begin = mark_at(meter, from)->event, *end = mark_at(meter, to)->event;
    float ms = 0;
    bool is_known = between && begin && end && between(&ms, begin, end) == 0 && ms > 0;
    return is_known ? (uint64_t)((double)ms * 1e6) : 0;
}

/* When the device reached a mark that is over, by our clock, or somewhat earlier: since a mark cannot be reached before the
 * call that records it, each says how the device's clock stands to ours at the least. */
static uint64_t reached_ns(struct meter *meter, uint32_t number) {
    uint64_t reached = meter->known_ns + (uint64_t)((double)span_ns(meter, meter->known, number) * (1 - CLOCK_DRIFT));
    uint64_t recorded = mark_at(meter, number)->recorded_ns;
    return reached > recorded ? reached : recorded;
}

/* Later marks' times are counted from this one's. */
static void know(struct meter *meter, uint32_t number) {
    uint64_t reached = reached_ns(meter, number);
    meter->known = number;
    meter->known_ns = reached;
}

static bool put(struct meter *meter, void *stream, bool is_late, bool is_begin) {
    int (*make)(void **, unsigned) = (int (*)(void **, unsigned))quota_call(&create);
    int (*tell)(void *, void *) = (int (*)(void *, void *))quota_call(&record);
    struct mark *mark = mark_at(meter, meter->head);
    // One more than those in use stays: the next mark's time is counted from the last one that is over.
    if (!make || !tell || meter->head - meter->tail >= METER_MARKS - 2)
        return false;
    if (meter->head - meter->known >= METER_MARKS) // its event is about to be another's
        know(meter, meter->tail - 1);
    if (!mark->event) {
        int mode = cores_relaxed();
        bool is_made = make(&mark->event, 0) == 0;
        cores_strict(mode);
        if (!is_made) {
            mark->event = NULL;
            return false;
        }
    }
    uint64_t now = quota_now_ns();
    if (tell(mark->event, stream) != 0)
        return false;
    mark->stream = stream;
    mark->recorded_ns = now;
    mark->returned_ns = quota_now_ns();
    mark->launch_ns = mark->held_ns = 0;
    mark->launches = meter->uncovered;
    mark->is_late = is_late;
    mark->is_sparse = meter->is_sparse;
    mark->is_begin = is_begin;
    meter->uncovered = 0;
    meter->is_sparse = false;
    meter->head++;
    return true;
}

/* For how long the device was still at work when this mark was recorded, and so reached it later; 0: it may have been idle.
 * An idle device reaches it while the call is under way, and a call behind a pause took an H200's driver 35 us. */
static uint64_t busy_ns(struct meter *meter, uint32_t number) {
    const struct mark *mark = mark_at(meter, number);
    uint64_t reached = reached_ns(meter, number);
    return reached > mark->returned_ns + LATER_NS ? reached - mark->recorded_ns : 0;
}

/* What the device did between a mark, which is over, and the one before. */
static uint64_t worked_ns(struct meter *meter, uint32_t number) {
    struct mark *mark = mark_at(meter, number), *before = mark_at(meter, number - 1);
    if (reached_ns(meter, number) == mark->recorded_ns)
        know(meter, number);
    if (!mark->launches)
        return 0;
    uint64_t span = span_ns(meter, number - 1, number), average = mark->launches * meter->average_ns;
    bool is_held = mark->held_ns > span / 8;
    uint64_t busy = mark->is_late || is_held ? busy_ns(meter, number) : 0;
    if (busy)
        mark->launch_ns = 0;
    if (is_held || (mark->is_late && (mark->is_sparse || !busy))) {
        // Some of the span the device was idle, whatever it did at the end; of that the average leaves out the longer part.
        busy = busy < span ? busy : span;
        uint64_t longer = busy > LONG_NS ? busy - LONG_NS : 0;
        return longer + (span - longer < average ? span - longer : average);
    }
    span -= span < before->launch_ns ? span : before->launch_ns;
    if (before->is_begin)
        meter->average_ns += ((int64_t)(span < LONG_NS ? span : LONG_NS) - (int64_t)meter->average_ns) / REMEMBERS;
    return span;
}

uint64_t meter_collect(struct meter *meter) {
    int (*ask)(void *) = (int (*)(void *))quota_call(&query);
    uint64_t worked = 0;
    while (ask && meter->tail != meter->head) {
        int result = ask(mark_at(meter, meter->tail)->event);
        if (result == NOT_READY)
            break;
        if (result != 0) {
            forget(meter, NULL);
            break;
        }
        worked += worked_ns(meter, meter->tail++);
    }
    if (!worked)
        return 0;
    // Side by side in several streams, kernels take no more time than goes by.
    uint64_t went_by = quota_now_ns() - meter->charged_ns;
    worked = worked < went_by ? worked : went_by;
    // Not to now: what is under way has begun before now, and ends behind it.
    meter->charged_ns += worked;
    return worked;
}

static void cover(struct meter *meter, bool is_late) {
    if (meter->uncovered)
        put(meter, meter->stream, is_late, false);
}

void meter_cover(struct meter *meter) {
    cover(meter, true);
}

bool meter_before(struct meter *meter, uint64_t now, const struct meter_launch *launch) {
    void *stream = launch->stream;
    if (launch->context != meter->context)
        forget(meter, launch->context);
    bool is_soon = now - meter->launched_ns < SOON_NS;
    meter->launched_ns = now;
    meter->most_skipped = launch->is_within ? MOST_SKIPPED_WITHIN : MOST_SKIPPED;
    bool is_idle = meter_is_idle(meter), is_over = meter_is_reached(meter);
    if (is_idle && now > meter->charged_ns)
        meter->charged_ns = now;
    if (!is_over && stream != meter->stream)
        meter_cover(meter);
    meter->is_begun = false;
    meter->is_skipped =
        is_over && is_soon && !launch->is_long && stream == meter->stream && meter->uncovered < meter->skips;
    meter->is_sparse |= meter->is_skipped;
    if (meter->is_skipped)
        return is_idle;
    // With nothing behind the last mark and that not over, the device goes straight on to this launch.
    meter->is_begun = (is_over || (stream != meter->stream && !meter->uncovered)) && put(meter, stream, true, true);
    meter->stream = stream;
    return is_idle;
}

static uint64_t held_ns(uint64_t call_ns) {
    return call_ns > HELD_NS ? call_ns : 0;
}

void meter_after(struct meter *meter, bool is_long) {
    struct mark *begin = meter->is_begun ? mark_at(meter, meter->head - 1) : NULL;
    if (begin) {
        begin->launch_ns = quota_now_ns() - begin->returned_ns;
        // At random, or a loop's same kernel would always be the one that is measured.
        meter->random = meter->random * 1664525u + 1013904223u;
        meter->skips = meter->average_ns < SHORT_NS ? (meter->random >> 8) % (meter->most_skipped + 1) : 0;
    }
    meter->uncovered++;
    if (is_long || begin || (meter->uncovered >= MOST_UNCOVERED && !meter->is_skipped))
        cover(meter, false);
    struct mark *end = mark_at(meter, meter->head - 1);
    // Where this thread lost its processor meanwhile, the device may have been idle for so much of the time between the two.
    if (begin && end != begin)
        end->held_ns = held_ns(begin->returned_ns - begin->recorded_ns) +
                       held_ns(end->returned_ns - begin->returned_ns - begin->launch_ns);
}

uint64_t meter_queued_since_ns(const struct meter *meter, void *stream) {
    for (uint32_t number = meter->tail; number != meter->head; number++) {
        const struct mark *mark = &meter->marks[number % METER_MARKS];
        if (mark->stream == stream && mark->launches)
            return mark->recorded_ns;
    }
    return 0;
}

bool meter_is_reached(const struct meter *meter) {
    return meter->tail == meter->head;
}

bool meter_is_idle(const struct meter *meter) {
    return meter_is_reached(meter) && !meter->uncovered;
}
