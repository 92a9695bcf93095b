/* CUDA: a share of a device's time, kept over launches of kernels, cooperative kernels and graphs.
 *
 * What launches took is measured (meter.c) and put into the slice's bucket (share.c), which lies in the ledger's row. A
 * launch waits while the slice is too far ahead of its share, and while its stream has much queued that nobody knows the
 * cost of yet; never for longer than SHARE_LAUNCH_WAIT_NS. A debt that launches cannot wait off, as after a kernel of
 * seconds, is waited off where the program waits for the device anyway. Who else is at work is on the device's board.
 */
#include "cores.h"
#include "cuda.h"
#include "meter.h"
#include "share.h"

#define LOOK_NS 2000000ull        /* how often who waits looks again */
#define SYNC_DEBT_NS 500000000ull /* left to launches to wait off */
#define SYNC_WAIT_NS 5000000000ull
#define WORKS_NS 100000000ull     /* a launch that nobody waits for is work for so long */
#define WAITS_NS 10000000000ull   /* somebody waits for the device: it tells when that ends */
#define WANTS_NS 1000000ull       /* between two steps a program wants the device still */
#define TOLD_EVERY 64u            /* launches of who has no limit */
#define BESIDE_NS 1000000000ull   /* who wanted time so long ago is still beside */

enum { CAPTURE_RELAXED = 2 };

/* What others had worked when a stretch began, how many of them were at work, when in its turn this process was, and for how
 * long others' turns had kept it from its share. */
struct others {
    uint64_t begun_ns, phase_ns, missed_ns, busy_ns[BOARD_SEATS], worked_ns[BOARD_SEATS];
    int num_busy;
};

static _Atomic(void *) meters;          /* struct meter[QUOTA_MOST_DEVICES] */
static _Atomic(void *) stretches; /* struct others[QUOTA_MOST_DEVICES], each with its meter's lock */

static struct quota_call create = {"cuEventCreate", CUDA, NULL};
static struct quota_call query = {"cuEventQuery", CUDA, NULL};
static struct quota_call get_context = {"cuCtxGetCurrent", CUDA, NULL};
static struct quota_call exchange_mode = {"cuThreadExchangeStreamCaptureMode", CUDA, NULL};

static void *of_devices(_Atomic(void *) *all, int device, size_t bytes) {
    quota_notice_fork();
    void *known = atomic_load_explicit(all, memory_order_acquire);
    if (!known) {
        void *fresh = quota_wiped(bytes * QUOTA_MOST_DEVICES);
        if (fresh && atomic_compare_exchange_strong(all, &known, fresh))
            known = fresh;
    }
    return known && device >= 0 && device < QUOTA_MOST_DEVICES ? (char *)known + (size_t)device * bytes : NULL;
}

static struct meter *meter_of(int device) {
    return of_devices(&meters, device, sizeof(struct meter));
}

static void lock(struct meter *meter) {
    for (unsigned turn = 0; atomic_exchange_explicit(&meter->lock, 1, memory_order_acquire); turn++)
        quota_wait(turn);
}

static void unlock(struct meter *meter) {
    atomic_store_explicit(&meter->lock, 0, memory_order_release);
}

static void exchange(int *mode) {
    int (*real)(int *) = (int (*)(int *))quota_call(&exchange_mode);
    if (real)
        real(mode);
}

int cores_relaxed(void) {
    int mode = CAPTURE_RELAXED;
    exchange(&mode);
    return mode;
}

void cores_strict(int mode) {
    exchange(&mode);
}

static void *context_here(void) {
    int (*ask)(void **) = (int (*)(void **))quota_call(&get_context);
    void *context = NULL;
    return ask && ask(&context) == 0 ? context : NULL;
}

static struct seat *seat_of(int device, struct ledger_row *row) {
    const struct quota_limits *limits = quota_limits();
    struct seat *seat = board_seat(device, atomic_load(&row->key));
    if (seat) {
        atomic_store(&seat->slice, quota_hash(limits->ledger, __builtin_strlen(limits->ledger)));
        atomic_store(&seat->percent, atomic_load(&row->cores_percent));
        atomic_store(&seat->priority, limits->priority);
    }
    return seat;
}

static void tell(struct seat *seat, uint64_t now, uint64_t works_ns, uint64_t wants_ns) {
    if (seat)
        seat_tell(seat, now, works_ns, wants_ns);
}

/* How much more than `before`, which is set on; nothing where what was measured is less than the clock said before. */
static uint64_t increase(uint64_t *before, uint64_t now) {
    uint64_t more = now > *before ? now - *before : 0;
    *before += more;
    return more;
}

/* What others had of a stretch that ends now; another begins. Returns how many others. */
static int others_parts(const struct board *board, struct others *others, const struct seat *own, uint64_t now,
                        struct part parts[BOARD_SEATS], uint64_t *span_ns) {
    int count = 0;
    uint64_t span = now - others->begun_ns;
    others->num_busy = 0;
    for (int at = 0; at < BOARD_SEATS; at++) {
        const struct seat *seat = &board->seats[at];
        uint64_t busy = increase(&others->busy_ns[at], seat_busy_ns(seat, now));
        uint64_t worked = increase(&others->worked_ns[at], seat_worked_ns(seat, now));
        others->num_busy += seat != own && seat_is_busy(seat, now);
        if (seat != own && worked && span)
            parts[count++] = (struct part){(double)busy / (double)span, (double)worked / (double)span};
    }
    others->begun_ns = now;
    *span_ns = span;
    return count;
}

static void begin_stretch(int device, const struct seat *seat, uint64_t now) {
    const struct board *board = board_of(device);
    struct others *others = of_devices(&stretches, device, sizeof *others);
    struct part parts[BOARD_SEATS];
    uint64_t span;
    if (!board || !others)
        return;
    others_parts(board, others, seat, now, parts, &span);
    others->phase_ns = 0;
}

/* What of `elapsed` was this process's own work, and for how long others' turns had kept it from its share. */
static struct stretch own_stretch(int device, struct seat *seat, uint64_t now, uint64_t elapsed) {
    const struct board *board = board_of(device);
    struct others *others = of_devices(&stretches, device, sizeof *others);
    struct part parts[BOARD_SEATS];
    uint64_t span;
    if (!board || !others)
        return (struct stretch){elapsed, elapsed, 0};
    int before = others->num_busy, count = others_parts(board, others, seat, now, parts, &span);
    int num_busy = before < others->num_busy ? before : others->num_busy;
    double own = elapsed < span ? (double)elapsed / (double)span : 1;
    uint64_t worked = (uint64_t)((double)elapsed * share_own(own, parts, count) / own);
    double busy = 0;
    for (int at = 0; at < count; at++)
        busy = parts[at].busy > busy ? parts[at].busy : busy;
    uint64_t beside = num_busy && busy > 0 && busy < 1 ? (uint64_t)((double)elapsed * busy) : elapsed;
    uint64_t in_turns = share_turns(&others->phase_ns, beside, num_busy);
    // Of a longer stretch they may have waited for their own share in between.
    if (num_busy && elapsed < SHARE_LAUNCH_WAIT_NS)
        worked = in_turns + elapsed - beside;
    seat_measured(seat, now, span, worked);
    // Before its first event the process waited for its turn.
    return (struct stretch){elapsed, worked, others->missed_ns + (num_busy && elapsed < span ? span - elapsed : 0)};
}

static void collect(struct meter *meter, struct ledger_row *row, int device, struct seat *seat) {
    if (meter_is_reached(meter))
        return;
    int mode = cores_relaxed();
    uint64_t elapsed = meter_collect(meter);
    cores_strict(mode);
    if (!elapsed)
        return;
    uint64_t ready = atomic_load(&row->cores_ready_ns), now = quota_now_ns(), next;
    double share = atomic_load(&row->cores_percent) / 100.0;
    struct stretch stretch = {elapsed, elapsed, 0};
    if (seat) {
        share = share_of(board_of(device), seat, now, quota_limits()->is_lent);
        stretch = own_stretch(device, seat, now, elapsed);
    }
    if (share <= 0)
        return;
    struct others *others = of_devices(&stretches, device, sizeof *others);
    do
        next = share_charged(ready, now, &stretch, share);
    while (!atomic_compare_exchange_weak(&row->cores_ready_ns, &ready, next));
    if (others)
        others->missed_ns = share_missed(next, now, &stretch);
}

struct wait {
    struct meter *meter;
    struct ledger_row *row;
    struct seat *seat;
    int device;
    void *stream;
    uint64_t ahead_ns, resume_ns; /* how far ahead makes it wait, and how far it may be to go on */
    uint64_t most_ns;
    bool is_launch;
};

static uint64_t rest_ns(const struct wait *wait, uint64_t now, bool is_first) {
    uint64_t ahead = is_first ? wait->ahead_ns : wait->resume_ns;
    uint64_t rest = share_wait_ns(atomic_load(&wait->row->cores_ready_ns), now, ahead);
    uint64_t since = wait->is_launch ? meter_queued_since_ns(wait->meter, wait->stream) : 0;
    return rest || !since || now < since + SHARE_QUEUE_NS ? rest : LOOK_NS;
}

/* Returns when it looked last, now: a launch that need not wait reads the clock once. */
static uint64_t wait_for_share(const struct wait *wait) {
    uint64_t begun = quota_now_ns(), now = begun;
    for (bool is_first = true;; is_first = false, now = quota_now_ns()) {
        lock(wait->meter);
        collect(wait->meter, wait->row, wait->device, wait->seat);
        uint64_t rest = rest_ns(wait, now, is_first);
        bool is_idle = meter_is_idle(wait->meter);
        unlock(wait->meter);
        uint64_t left = now < begun + wait->most_ns ? begun + wait->most_ns - now : 0;
        if (!rest || !left || !atomic_load(&wait->row->cores_percent))
            return now;
        tell(wait->seat, now, is_idle ? 0 : WORKS_NS, WORKS_NS);
        rest = rest < left ? rest : left;
        quota_sleep_ns(rest < LOOK_NS ? rest : LOOK_NS);
    }
}

static struct ledger_row *row_of(int device) {
    int row = cuda_row(device);
    return row >= 0 ? ledger_row_at(row) : NULL;
}

/* Whether somebody with a limit was at work on the device just now. */
static bool is_beside_limited(const struct board *board) {
    uint64_t now = quota_now_ns();
    for (int at = 0; board && at < BOARD_SEATS; at++) {
        const struct seat *seat = &board->seats[at];
        if (atomic_load(&seat->owner) && atomic_load(&seat->percent) &&
            atomic_load(&seat->wanting_until_ns) + BESIDE_NS > now)
            return true;
    }
    return false;
}

/* Who has no limit tells the others that it is at work, now and then; beside one with a limit it measures how much, since
 * the other's account depends on it. Returns whether it does. */
static bool begin_free(void) {
    static __thread unsigned count;
    static _Atomic bool measures;
    if (count++ % TOLD_EVERY == 0) {
        int device = cuda_device_here();
        struct ledger_row *row = row_of(device);
        if (row) {
            tell(seat_of(device, row), quota_now_ns(), WORKS_NS, 0);
            atomic_store(&measures, is_beside_limited(board_of(device)));
        }
    }
    return atomic_load_explicit(&measures, memory_order_relaxed);
}

/* is_beside: the device has no limit here, but is measured for others. */
static void begin_measured(struct launch *launch, void *stream, bool is_beside) {
    int device = cuda_device_here();
    struct ledger_row *row = row_of(device);
    bool is_measured = row && (is_beside || atomic_load(&row->cores_percent) || begin_free());
    struct meter *meter = is_measured ? meter_of(device) : NULL;
    void *context = meter ? context_here() : NULL;
    if (!context || graphs_is_capturing(stream))
        return;
    if (!quota_call(&create) || !quota_call(&query))
        quota_say("this driver measures no time: the share of the cores is not kept");
    struct seat *seat = seat_of(device, row);
    uint64_t now = wait_for_share(&(struct wait){meter, row, seat, device, stream, SHARE_BURST_NS, SHARE_RESUME_NS,
                                                 SHARE_LAUNCH_WAIT_NS, true});
    tell(seat, now, WORKS_NS, 0);
    lock(meter);
    bool is_within = !share_wait_ns(atomic_load(&row->cores_ready_ns), now, SHARE_RESUME_NS / 2);
    if (meter_before(meter, now, &(struct meter_launch){stream, context, launch->is_long, is_within}) && seat)
        begin_stretch(device, seat, now);
    unlock(meter);
    launch->meter = meter;
}

void cores_begin(struct launch *launch, bool is_long, void *stream) {
    launch->meter = NULL;
    launch->is_long = is_long;
    bool has_cores = quota_limits()->has_cores;
    if (__builtin_expect(has_cores, 0) || (!quota_limits()->off && begin_free()))
        begin_measured(launch, stream, !has_cores);
}

int cores_end(const struct launch *launch, int result) {
    if (__builtin_expect(launch->meter != NULL, 0) && result == 0) {
        lock(launch->meter);
        meter_after(launch->meter, launch->is_long);
        unlock(launch->meter);
    }
    return result;
}

void cores_cover(void) {
    struct meter *all = atomic_load_explicit(&meters, memory_order_acquire);
    int device = all ? cuda_device_here() : -1;
    if (device < 0 || device >= QUOTA_MOST_DEVICES || !all[device].launched_ns)
        return;
    lock(&all[device]);
    if (context_here() == all[device].context)
        meter_cover(&all[device]);
    unlock(&all[device]);
}

void cores_begin_sync(void) {
    cores_cover();
    int device = quota_limits()->off ? -1 : cuda_device_here();
    if (!board_of(device))
        return;
    struct ledger_row *row = row_of(device);
    if (row)
        tell(seat_of(device, row), quota_now_ns(), WAITS_NS, 0);
}

void cores_end_sync(void) {
    struct meter *all = atomic_load_explicit(&meters, memory_order_acquire);
    int device = all || !quota_limits()->off ? cuda_device_here() : -1;
    struct ledger_row *row = all || board_of(device) ? row_of(device) : NULL;
    if (!row)
        return;
    struct seat *seat = seat_of(device, row);
    if (all && device >= 0)
        wait_for_share(&(struct wait){meter_of(device), row, seat, device, NULL, SYNC_DEBT_NS, SYNC_DEBT_NS, SYNC_WAIT_NS,
                                      false});
    tell(seat, quota_now_ns(), 0, WANTS_NS);
}
