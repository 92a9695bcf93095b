/* Plays the quota library's own share of a device's time in virtual time: cores.c, meter.c and share.c as they are, a
 * copy of them for each tenant, against a device that gives contexts turns.
 *
 *   shares FOLDER SECONDS CASE   FOLDER has tenant-0.so and tenant-1.so; a line for each tenant of each case:
 *                            case, asked, got in the first 10 s, least and most in any 10 s, got, the longest wait in a launch
 *                            [s]; tabs between
 */
#include "cuda.h"
#include "share.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define MOST_TENANTS 2
#define QUEUE 4096
#define DEPTH 1022              /* launches that a stream takes before it makes the program wait */
/* Measured on an H200 with driver 580 (tests/slicing/gpu/programs/turns.py): a turn, and the pause before another's. */
#define TURN_NS 2070000ull
#define SWITCH_NS 165000ull
#define LAUNCH_NS 4000ull       /* what a launch costs the program, before the device knows of it */
#define RECORD_NS 5400ull       /* and an event: a launch between two took 10.8 us more on an H100 */
#define EARLY_NS 2000ull        /* so long before either call returns the device knows of it */
#define START_NS 1500ull        /* what start and end of a kernel take of an H200 */
#define COLD_AFTER_NS (20 * MS) /* a call that the program has not made for 30 ms took about 33 us more on an H200 */
#define COLD_NS 33000ull
#define COLD_EARLY 0.25         /* of that, behind the device's knowing of it */
/* Assumed, since an H100's shares were off by half where the library took none of it into account: */
#define DELAYED 1e-3            /* of the calls, which the kernel holds up for DELAY_NS before they return */
#define DELAY_NS 40000ull
#define DRIFT 3e-5              /* of the device's clock */
#define LOST 5e-4               /* of the calls, where others want the processors, too: the thread waits for one */
#define MEAN_LOST_NS 2e6
#define US 1000ull
#define MS 1000000ull
#define S 1000000000ull
#define FIRST (10 * S)
#define LOOK (10 * MS)          /* how often the work done is noted */
#define WINDOW (FIRST / LOOK)

/* What one context has queued: kernels, and events (of no length) among them. */
struct item {
    uint64_t left_ns;
    uint64_t *event; /* its time is written when it is reached */
};

struct tenant;
typedef void program(struct tenant *);

struct tenant {
    program *run;
    unsigned percent;
    struct quota_limits limits;
    struct ledger_row row;
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
    void (*begin_sync)(void), (*end_sync)(void);
    uint64_t random, begins_ns;
    double lost; /* of its calls: after how many it waits for a processor */
    /* of the device */
    struct item queue[QUEUE];
    unsigned head, tail, kernels;
    uint64_t used_ns, *noted_ns; /* all, and as it was at each look */
    uint64_t next_ns; /* of the kernel that is about to be launched */
    /* of the program */
    ucontext_t context;
    uint64_t wakes_ns, blocked_ns, longest_ns, launched_ns, recorded_ns;
};

static struct tenant *tenants, *now_running;
static int num_tenants;
static uint64_t now, device_now, turn_ends, switched;
static int turn;
static struct board board;
static ucontext_t scheduler;
static const char *folder;

static bool is_busy(const struct tenant *tenant) {
    return tenant->tail != tenant->head;
}

/* Events at the head of a queue are reached once its context has its turn, as kernels are. */
static void pass_events(struct tenant *tenant) {
    while (is_busy(tenant) && tenant->queue[tenant->tail % QUEUE].event) {
        *tenant->queue[tenant->tail % QUEUE].event = device_now;
        tenant->tail++;
    }
}

static void run_device(uint64_t until) {
    for (;;) {
        int num_busy = 0;
        for (int at = 0; at < num_tenants; at++)
            num_busy += is_busy(&tenants[at]);
        if (!num_busy) {
            device_now = until;
            return;
        }
        if (device_now >= until)
            return;
        if (!is_busy(&tenants[turn]) || device_now >= turn_ends) {
            int before = turn;
            do
                turn = (turn + 1) % num_tenants;
            while (!is_busy(&tenants[turn]));
            switched = device_now + (turn != before ? SWITCH_NS : 0);
            turn_ends = switched + TURN_NS;
        }
        if (device_now < switched) {
            device_now = switched < until ? switched : until;
            continue;
        }
        struct tenant *tenant = &tenants[turn];
        pass_events(tenant);
        if (!is_busy(tenant))
            continue;
        struct item *item = &tenant->queue[tenant->tail % QUEUE];
        uint64_t span = item->left_ns;
        span = span < until - device_now ? span : until - device_now;
        span = span < turn_ends - device_now ? span : turn_ends - device_now;
        device_now += span;
        item->left_ns -= span;
        tenant->used_ns += span;
        if (!item->left_ns) {
            tenant->tail++;
            tenant->kernels--;
        }
    }
}

static void sleep_until(uint64_t at) {
    now_running->wakes_ns = at;
    swapcontext(&now_running->context, &scheduler);
}

static void enqueue(struct tenant *tenant, struct item item) {
    if (tenant->head - tenant->tail >= QUEUE)
        abort();
    tenant->queue[tenant->head++ % QUEUE] = item;
}

/* ---- What the library's files find behind them ---- */
_Atomic bool quota_cannot_wipe;
void quota_notice_fork_slow(void) {}
uint64_t quota_now_ns(void) { return now; }
void quota_wait(unsigned turns) { (void)turns; sleep_until(now + US); }
void *quota_wiped(size_t bytes) { return calloc(1, bytes); }
_Atomic(const struct quota_limits *) quota_limits_read;
const struct quota_limits *quota_limits_slow(void) { return &now_running->limits; }
struct ledger_row *ledger_row_at(int row) { return row == 0 ? &now_running->row : NULL; }
int cuda_row(int ordinal) { return ordinal; }
int cuda_device_here(void) { return 0; }
uint64_t quota_hash(const void *bytes, size_t length) { return (uint64_t)(uintptr_t)bytes + length; }
bool graphs_is_capturing(void *stream) { return stream != NULL; }
bool graphs_begin_launch(void *exec, void *stream, struct graph_launch *launch) {
    return !exec && !stream && launch;
}
void graphs_end_launch(const struct graph_launch *launch) { (void)launch; }
struct board *board_of(int device) { return device == 0 ? &board : NULL; }
struct seat *board_seat(int device, uint64_t key) {
    (void)device, (void)key;
    struct seat *seat = &board.seats[now_running - tenants];
    atomic_store(&seat->owner, 1);
    return seat;
}
void quota_say(const char *format, ...) {
    fprintf(stderr, "shares: %s\n", format);
    exit(1);
}

static double uniform(struct tenant *tenant) {
    tenant->random = tenant->random * 6364136223846793005u + 1442695040888963407u;
    return (double)(tenant->random >> 11) / (double)(1ull << 53);
}

/* How long a thread loses its processor to others, at any of a program's calls. */
static uint64_t lost_ns(void) {
    bool is_lost = now_running->lost && uniform(now_running) < now_running->lost;
    return is_lost ? (uint64_t)(2 * MEAN_LOST_NS * uniform(now_running)) : 0;
}

void quota_sleep_ns(uint64_t span_ns) { sleep_until(now + span_ns + lost_ns()); }

/* How much longer a call takes whose code and data other work has driven out of the caches meanwhile. */
static uint64_t cold_ns(uint64_t *last_ns) {
    bool is_cold = now - *last_ns > COLD_AFTER_NS;
    *last_ns = now;
    return is_cold ? (uint64_t)((double)COLD_NS * (0.7 + 0.6 * uniform(now_running))) : 0;
}

/* A call of the driver that the device knows of EARLY_NS before it returns. */
static void call(uint64_t span_ns, uint64_t *last_ns, struct item item, uint64_t delay_ns) {
    uint64_t cold = cold_ns(last_ns), early = EARLY_NS + (uint64_t)(COLD_EARLY * (double)cold);
    sleep_until(now + span_ns + cold - early + lost_ns());
    enqueue(now_running, item);
    sleep_until(now + early + delay_ns + lost_ns());
}

static int launch_kernel(void) {
    uint64_t begun = now;
    while (now_running->kernels >= DEPTH)
        sleep_until(now + 20 * US);
    now_running->kernels++;
    call(LAUNCH_NS, &now_running->launched_ns, (struct item){now_running->next_ns + START_NS, NULL}, 0);
    now_running->blocked_ns = now - begun;
    return 0;
}

static int create_event(uint64_t **event, unsigned flags) {
    (void)flags;
    *event = calloc(1, sizeof **event);
    return 0;
}

static int record_event(uint64_t *event, void *stream) {
    (void)stream;
    *event = UINT64_MAX;
    call(RECORD_NS, &now_running->recorded_ns, (struct item){0, event}, uniform(now_running) < DELAYED ? DELAY_NS : 0);
    return 0;
}

static int query_event(uint64_t *event) { return *event == UINT64_MAX ? 600 : 0; }

static int between_events(float *ms, uint64_t *begin, uint64_t *end) {
    *ms = (float)((double)(*end - *begin) * (1 + DRIFT) / 1e6);
    return 0;
}

static int current_context(void **context) {
    *context = now_running;
    return 0;
}

void *quota_call_slow(struct quota_call *call) {
    static const struct {
        const char *name;
        void *function;
    } all[] = {{"cuEventCreate", create_event},          {"cuEventRecord", record_event},
               {"cuEventQuery", query_event},            {"cuEventElapsedTime", between_events},
               {"cuCtxGetCurrent", current_context}};
    for (size_t at = 0; at < sizeof all / sizeof *all; at++)
        if (strcmp(all[at].name, call->name) == 0)
            return all[at].function;
    return NULL;
}

void *quota_real_slow(struct quota_wrap *wrap) {
    (void)wrap;
    return launch_kernel;
}

/* ---- Programs ---- */
static void launch(struct tenant *tenant, uint64_t span_ns) {
    uint64_t begun = now;
    tenant->next_ns = span_ns;
    tenant->launch(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    uint64_t waited = now - begun - tenant->blocked_ns;
    tenant->longest_ns = waited > tenant->longest_ns ? waited : tenant->longest_ns;
}

static void wait_for_device(struct tenant *tenant) {
    tenant->begin_sync();
    // As a driver that spins, then sleeps: it notices the end within a hundredth of the wait.
    for (uint64_t begun = now; is_busy(tenant);)
        sleep_until(now + 20 * US + (now - begun) / 100);
    tenant->end_sync();
}

static void steps(struct tenant *tenant) {
    for (int at = 0; at < 20; at++)
        launch(tenant, 100 * US);
    wait_for_device(tenant);
}

/* Longer than a turn by less than one. */
static void past_a_turn(struct tenant *tenant) {
    for (int at = 0; at < 23; at++)
        launch(tenant, 100 * US);
    wait_for_device(tenant);
}

/* And than two turns. */
static void past_two_turns(struct tenant *tenant) {
    for (int at = 0; at < 44; at++)
        launch(tenant, 100 * US);
    wait_for_device(tenant);
}

static void few_long(struct tenant *tenant) {
    for (int at = 0; at < 3; at++)
        launch(tenant, 5 * MS);
    wait_for_device(tenant);
}

/* With a small share every kernel comes behind a pause, where calls are slow. */
static void rare(struct tenant *tenant) {
    launch(tenant, 2 * MS);
    wait_for_device(tenant);
}

static void long_steps(struct tenant *tenant) {
    launch(tenant, 1 * S);
    wait_for_device(tenant);
}

static void mixed(struct tenant *tenant) {
    for (int at = 0; at < 1000; at++)
        launch(tenant, at == 500 ? 200 * MS : 20 * US);
    wait_for_device(tenant);
}

/* What a program waits for lies behind all else, where the last mark that found the device idle is the oldest. */
static void mixed_last(struct tenant *tenant) {
    for (int at = 0; at < 1000; at++)
        launch(tenant, at == 999 ? 200 * MS : 20 * US);
    wait_for_device(tenant);
}

static void never_waiting(struct tenant *tenant) {
    launch(tenant, uniform(tenant) < 0.02 ? 20 * MS : 200 * US);
}

static void spread(struct tenant *tenant) {
    for (int at = 0; at < 50; at++) {
        double exponent = uniform(tenant);
        uint64_t span = 10 * US;
        for (; exponent > 0.1; exponent -= 0.1)
            span = span * 23 / 10;
        launch(tenant, span);
    }
    wait_for_device(tenant);
}

static void collective(struct tenant *tenant) {
    for (int at = 0; at < 200; at++)
        launch(tenant, at == 199 ? 2 * S : 50 * US);
    wait_for_device(tenant);
}

static void sparse(struct tenant *tenant) {
    launch(tenant, 20 * US);
    sleep_until(now + 80 * US);
}

static void compute(uint64_t span_ns) {
    sleep_until(now + span_ns + lost_ns());
}

/* The device waits for launches, as for an eager trainer's: tests/slicing/gpu has this program, too. */
static void host_bound(struct tenant *tenant) {
    for (int at = 0; at < 50; at++) {
        launch(tenant, (at < 40 ? 10 : at < 48 ? 30 : 150) * US);
        compute(20 * US);
    }
    wait_for_device(tenant);
}

static void host_bound_busy(struct tenant *tenant) {
    tenant->lost = LOST;
    host_bound(tenant);
}

/* A kernel in fifty is long: most of them have no mark before or behind. */
static void host_bound_long(struct tenant *tenant) {
    for (int at = 0; at < 50; at++) {
        launch(tenant, uniform(tenant) < 0.02 ? 700 * US : 10 * US);
        compute(20 * US);
    }
    wait_for_device(tenant);
}

/* The next batch is read while nothing runs, and waited for is every other step. */
static void reading(struct tenant *tenant) {
    for (int at = 0; at < 40; at++) {
        launch(tenant, 40 * US);
        if (at % 20 == 19)
            sleep_until(now + 5 * MS);
    }
    wait_for_device(tenant);
}

static void half_idle(struct tenant *tenant) {
    steps(tenant);
    sleep_until(now + 8 * MS);
}

struct seat_plan {
    program *run;
    unsigned percent, priority;
    bool is_lent;
    uint64_t begins_ns;
};

static const struct plan {
    const char *name;
    struct seat_plan seats[MOST_TENANTS];
} plans[] = {
    {"20 x 0.1 ms, wait", {{steps, 10, 0, 0, 0}}},
    {"20 x 0.1 ms, wait", {{steps, 30, 0, 0, 0}}},
    {"20 x 0.1 ms, wait", {{steps, 70, 0, 0, 0}}},
    {"999 x 20 us, 200 ms, wait", {{mixed, 30, 0, 0, 0}}},
    {"999 x 20 us, then 200 ms, wait", {{mixed_last, 10, 0, 0, 0}}},
    {"999 x 20 us, then 200 ms, wait", {{mixed_last, 30, 0, 0, 0}}},
    {"999 x 20 us, then 200 ms, wait", {{mixed_last, 70, 0, 0, 0}}},
    {"10 us to 40 ms, wait", {{spread, 30, 0, 0, 0}}},
    {"0.2 or 20 ms, never wait", {{never_waiting, 30, 0, 0, 0}}},
    {"199 x 50 us and 2 s, wait", {{collective, 50, 0, 0, 0}}},
    {"2 ms, wait", {{rare, 5, 0, 0, 0}}},
    {"1 s, wait", {{long_steps, 50, 0, 0, 0}}},
    {"20 us every 84 us", {{sparse, 30, 0, 0, 0}}},
    {"800 us every 5.1 ms", {{reading, 30, 0, 0, 0}}},
    {"host-bound", {{host_bound, 0, 0, 0, 0}}},
    {"host-bound", {{host_bound, 10, 0, 0, 0}}},
    {"host-bound", {{host_bound, 30, 0, 0, 0}}},
    {"host-bound", {{host_bound, 70, 0, 0, 0}}},
    {"host-bound, busy processors", {{host_bound_busy, 0, 0, 0, 0}}},
    {"host-bound, busy processors", {{host_bound_busy, 10, 0, 0, 0}}},
    {"host-bound, busy processors", {{host_bound_busy, 30, 0, 0, 0}}},
    {"host-bound, 2 % of 0.7 ms", {{host_bound_long, 30, 0, 0, 0}}},
    {"host-bound, 2 % of 0.7 ms", {{host_bound_long, 60, 0, 0, 0}}},
    {"two tenants", {{steps, 50, 0, 0, 0}, {steps, 50, 0, 0, 0}}},
    {"two tenants, unequal", {{steps, 30, 0, 0, 0}, {steps, 60, 0, 0, 0}}},
    {"two tenants, mixed", {{mixed, 30, 0, 0, 0}, {spread, 50, 0, 0, 0}}},
    {"23 x 0.1 ms beside 10 us-40 ms", {{past_a_turn, 50, 0, 0, 0}, {spread, 30, 0, 0, 0}}},
    {"44 x 0.1 ms beside 10 us-40 ms", {{past_two_turns, 30, 0, 0, 0}, {spread, 60, 0, 0, 0}}},
    {"23 x 0.1 ms beside 3 x 5 ms", {{past_a_turn, 40, 0, 0, 0}, {few_long, 40, 0, 0, 0}}},
    {"beside one without a limit", {{steps, 30, 0, 0, 0}, {steps, 0, 0, 0, 0}}},
    {"lent: alone", {{steps, 30, 0, 1, 0}}},
    {"lent: taken back", {{steps, 30, 0, 1, 0}, {steps, 70, 0, 1, 0}}},
    {"lent: 20 % that nobody has", {{steps, 30, 0, 1, 0}, {steps, 50, 0, 1, 0}}},
    {"lent: by priority", {{steps, 30, 1, 1, 0}, {steps, 50, 0, 1, 0}}},
    {"lent: beside one half idle", {{steps, 30, 0, 1, 0}, {half_idle, 70, 0, 1, 0}}},
};

static void main_of_tenant(void) {
    struct tenant *tenant = now_running;
    for (;;)
        tenant->run(tenant);
}

static void *find(void *handle, const char *name) {
    void *found = dlsym(handle, name);
    if (!found) {
        fprintf(stderr, "shares: %s\n", dlerror());
        exit(1);
    }
    return found;
}

static void open_tenant(struct tenant *tenant, const struct seat_plan *plan, int number) {
    static char stacks[MOST_TENANTS][1 << 18];
    static char names[MOST_TENANTS][16] = {"/a", "/b"};
    char path[4096];
    snprintf(path, sizeof path, "%s/tenant-%d.so", folder, number);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        fprintf(stderr, "shares: %s\n", dlerror());
        exit(1);
    }
    *tenant = (struct tenant){.run = plan->run, .percent = plan->percent, .random = (uint64_t)number + 1};
    tenant->limits = (struct quota_limits){.has_cores = plan->percent != 0, .is_lent = plan->is_lent,
                                           .priority = plan->priority, .ledger = names[number]};
    tenant->row.cores_percent = plan->percent;
    *(void **)&tenant->launch = find(handle, "cuLaunchKernel");
    *(void **)&tenant->begin_sync = find(handle, "cores_begin_sync");
    *(void **)&tenant->end_sync = find(handle, "cores_end_sync");
    getcontext(&tenant->context);
    tenant->context.uc_stack.ss_sp = stacks[number];
    tenant->context.uc_stack.ss_size = sizeof stacks[number];
    makecontext(&tenant->context, main_of_tenant, 0);
}

static void play(const struct plan *plan, double seconds) {
    tenants = calloc(MOST_TENANTS, sizeof *tenants);
    num_tenants = plan->seats[1].run ? 2 : 1;
    now = device_now = turn_ends = switched = S; // not 0, which means never
    turn = 0;
    memset(&board, 0, sizeof board);
    for (int at = 0; at < num_tenants; at++)
        open_tenant(&tenants[at], &plan->seats[at], at);
    uint64_t begun = now, end = now + (uint64_t)(seconds * 1e9), looks = (end - begun) / LOOK, looked = 0;
    for (int at = 0; at < num_tenants; at++)
        tenants[at].noted_ns = calloc(looks + 1, sizeof(uint64_t));
    for (;;) {
        now_running = &tenants[0];
        for (int at = 1; at < num_tenants; at++)
            if (tenants[at].wakes_ns < now_running->wakes_ns)
                now_running = &tenants[at];
        for (; looked <= looks && now_running->wakes_ns >= begun + looked * LOOK; looked++) {
            run_device(begun + looked * LOOK);
            for (int at = 0; at < num_tenants; at++)
                tenants[at].noted_ns[looked] = tenants[at].used_ns;
        }
        if (now_running->wakes_ns >= end)
            break;
        if (now_running->wakes_ns > now)
            now = now_running->wakes_ns;
        run_device(now);
        swapcontext(&scheduler, &now_running->context);
    }
    run_device(end);
    for (int at = 0; at < num_tenants; at++) {
        const uint64_t *noted = tenants[at].noted_ns;
        uint64_t least = UINT64_MAX, most = 0;
        for (uint64_t look = WINDOW; look < looked; look++) {
            uint64_t used = noted[look] - noted[look - WINDOW];
            least = used < least ? used : least;
            most = used > most ? used : most;
        }
        printf("%s\t%.2f\t%.4f\t%.4f\t%.4f\t%.4f\t%.4f\n", plan->name, tenants[at].percent / 100.0,
               (double)noted[WINDOW] / (double)FIRST, (double)least / (double)FIRST, (double)most / (double)FIRST,
               (double)tenants[at].used_ns / (seconds * 1e9), (double)tenants[at].longest_ns / 1e9);
        free(tenants[at].noted_ns);
    }
    free(tenants);
}

int main(int count, char **arguments) {
    if (count != 4) {
        fprintf(stderr, "shares FOLDER SECONDS CASE\n");
        return 2;
    }
    folder = arguments[1];
    size_t number = (size_t)atol(arguments[3]), all = sizeof plans / sizeof *plans;
    if (number >= all) { /* how many cases there are */
        printf("%zu\n", all);
        return 0;
    }
    play(&plans[number], atof(arguments[2]));
    return 0;
}
