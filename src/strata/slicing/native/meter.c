#include "meter.h"

#define PAUSE_NS 20000u     /* longer than between launches in a row */
#define MOST_UNCOVERED 16u

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
    meter->head = meter->tail = meter->uncovered = 0;
    meter->context = context;
}

static bool put(struct meter *meter, void *stream, bool is_begin) {
    int (*make)(void **, unsigned) = (int (*)(void **, unsigned))quota_call(&create);
    int (*tell)(void *, void *) = (int (*)(void *, void *))quota_call(&record);
    struct mark *mark = mark_at(meter, meter->head);
    // One more than those in use stays: the next mark's time is counted from the last one that is over.
    if (!make || !tell || meter->head - meter->tail >= METER_MARKS - 2)
        return false;
    if (!mark->event && make(&mark->event, 0) != 0) {
        mark->event = NULL;
        return false;
    }
    if (tell(mark->event, stream) != 0)
        return false;
    mark->stream = stream;
    mark->recorded_ns = quota_now_ns();
    mark->is_begin = is_begin;
    meter->head++;
    return true;
}

uint64_t meter_collect(struct meter *meter) {
    int (*ask)(void *) = (int (*)(void *))quota_call(&query);
    int (*between)(float *, void *, void *) = (int (*)(float *, void *, void *))quota_call(&elapsed);
    uint64_t worked = 0;
    while (ask && between && meter->tail != meter->head) {
        struct mark *mark = mark_at(meter, meter->tail);
        int result = ask(mark->event);
        float ms = 0;
        if (result == NOT_READY)
            break;
        if (result != 0) {
            forget(meter, NULL);
            break;
        }
        if (!mark->is_begin && between(&ms, mark_at(meter, meter->tail - 1)->event, mark->event) == 0 && ms > 0)
            worked += (uint64_t)((double)ms * 1e6);
        meter->tail++;
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

void meter_cover(struct meter *meter) {
    if (meter->uncovered && put(meter, meter->stream, false))
        meter->uncovered = 0;
}

bool meter_before(struct meter *meter, void *stream, void *context) {
    uint64_t now = quota_now_ns();
    if (context != meter->context)
        forget(meter, context);
    meter->is_after_pause = now - meter->launched_ns > PAUSE_NS;
    meter->launched_ns = now;
    if (stream != meter->stream || meter->is_after_pause)
        meter_cover(meter);
    bool is_dry = meter->uncovered == 0 && meter->tail == meter->head;
    if (is_dry && now > meter->charged_ns)
        meter->charged_ns = now;
    // With nothing behind the last mark and that not over, the device goes straight on to this launch.
    if (is_dry || (stream != meter->stream && !meter->uncovered))
        put(meter, stream, true);
    meter->stream = stream;
    return is_dry;
}

void meter_after(struct meter *meter, bool is_long) {
    meter->uncovered++;
    if (is_long || meter->is_after_pause || meter->uncovered >= MOST_UNCOVERED)
        meter_cover(meter);
}

uint64_t meter_queued_since_ns(const struct meter *meter, void *stream) {
    for (uint32_t number = meter->tail; number != meter->head; number++) {
        const struct mark *mark = &meter->marks[number % METER_MARKS];
        if (mark->stream == stream && !mark->is_begin)
            return mark->recorded_ns;
    }
    return 0;
}

bool meter_is_idle(const struct meter *meter) {
    return meter->tail == meter->head && !meter->uncovered;
}
