/* This process's attachment to the ledger: the file mapped once, a slot taken at the first charge (again after a fork),
 * and the rows of the devices it uses. */
#include "ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static _Atomic(struct attachment *) attachment;

enum { EMPTY, ATTACHING, ATTACHED, REFUSED };

static uint64_t magic(void) {
    uint64_t word;
    memcpy(&word, LEDGER_MAGIC, sizeof word);
    return word;
}

static const char *judge(uint64_t found, uint32_t version) {
    return found == magic() && version == LEDGER_VERSION ? NULL : "it is not a ledger of this version";
}

/* The header is written by whoever finds none, the same by all: being killed in between leaves it to the next. */
static const char *write_header(struct ledger_file *file) {
    uint64_t found = atomic_load(&file->magic);
    if (found)
        return judge(found, atomic_load(&file->version));
    atomic_store(&file->version, LEDGER_VERSION);
    atomic_store(&file->num_slots, LEDGER_SLOTS);
    atomic_store(&file->num_rows, LEDGER_ROWS);
    atomic_compare_exchange_strong(&file->magic, &found, magic());
    return NULL;
}

static int open_file(const char *path) {
    int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0)
        return open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    fchmod(file, 0666); /* users of one container share its limit */
    return file;
}

/* Whole on the file system, or a full tmpfs would kill the program at some later charge. What is no ledger of ours is
 * not touched. */
static const char *make_whole(int file) {
    struct {
        uint64_t magic;
        uint32_t version;
    } head = {0};
    off_t size = lseek(file, 0, SEEK_END);
    if (size < 0 || pread(file, &head, sizeof head, 0) < 0)
        return strerror(errno);
    const char *why = head.magic ? judge(head.magic, head.version) : NULL;
    if (!why && size < (off_t)sizeof(struct ledger_file) && fallocate(file, 0, 0, sizeof(struct ledger_file)) != 0 &&
        (errno != EOPNOTSUPP || ftruncate(file, sizeof(struct ledger_file)) != 0))
        why = strerror(errno);
    return why;
}

static const char *map(int file, struct ledger_file **start) {
    const char *why = make_whole(file);
    if (why)
        return why;
    *start = mmap(NULL, sizeof **start, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (*start == MAP_FAILED)
        return strerror(errno);
    // A child has a slot of its own, and must not keep its parent's locked by a copy of the mapping.
    why = madvise(*start, sizeof **start, MADV_DONTFORK) == 0 ? write_header(*start) : strerror(errno);
    if (why)
        munmap(*start, sizeof **start);
    return why;
}

/* The C library's own is a symbol of 2.33, and the one before is in no header any more. */
static bool look_at(int file, struct stat *found) {
    return syscall(SYS_fstat, file, found) == 0;
}

static const char *take_slot(struct attachment *attached, int file) {
    struct stat found;
    const char *why = map(file, &attached->file);
    if (why)
        return why;
    int slot = slots_take(attached->file, file);
    if (slot < 0 || !look_at(file, &found)) {
        why = errno ? strerror(errno) : "every slot is taken";
        munmap(attached->file, sizeof *attached->file);
        return why;
    }
    attached->slot = (uint32_t)slot;
    attached->device = found.st_dev;
    attached->inode = found.st_ino;
    // Where many start together, each asking closely about all the others would take long.
    attached->is_first = !slots_sweep(attached->file, file, slot, atomic_load(&attached->file->slots_used) <= 16);
    return NULL;
}

static bool attach(struct attachment *attached) {
    int known = errno, file = open_file(quota_limits()->ledger);
    const char *why = file < 0 ? strerror(errno) : take_slot(attached, file);
    // The mapping keeps the open file, and with it the lock on our slot; so would, until it ends or executes another
    // program, a child that one of our threads has forked just now.
    if (file >= 0)
        close(file);
    errno = known;
    if (why)
        quota_say("no ledger at %s: %s; %s", quota_limits()->ledger, why,
                  quota_limits()->closed ? "every allocation is refused" : "there is no limit");
    return why == NULL;
}

void ledger_sweep(struct attachment *attached) {
    int known = errno, file = open(quota_limits()->ledger, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    struct stat found;
    // Another file in its place knows nothing of who lives.
    if (file >= 0 && look_at(file, &found) && found.st_dev == attached->device && found.st_ino == attached->inode)
        slots_sweep(attached->file, file, (int)attached->slot, true);
    if (file >= 0)
        close(file);
    errno = known;
}

static struct attachment *attach_slow(void) {
    struct attachment *attached = atomic_load(&attachment);
    if (!attached) {
        struct attachment *fresh = quota_wiped(sizeof *fresh);
        if (!fresh)
            return NULL;
        // A loser's page is left: this happens once, and a fork-wiped page may be in the list of fork.c.
        attached = atomic_compare_exchange_strong(&attachment, &attached, fresh) ? fresh : attached;
    }
    uint32_t state = EMPTY;
    if (atomic_compare_exchange_strong(&attached->state, &state, ATTACHING)) {
        state = attach(attached) ? ATTACHED : REFUSED;
        atomic_store_explicit(&attached->state, state, memory_order_release);
    }
    for (unsigned turn = 0; state == ATTACHING; turn++) {
        quota_wait(turn);
        state = atomic_load_explicit(&attached->state, memory_order_acquire);
    }
    return state == ATTACHED ? attached : NULL;
}

struct attachment *ledger_attach(void) {
    quota_notice_fork();
    struct attachment *attached = atomic_load_explicit(&attachment, memory_order_acquire);
    if (__builtin_expect(attached && atomic_load_explicit(&attached->state, memory_order_acquire) == ATTACHED, 1))
        return attached;
    return attach_slow();
}

/* The row with this key, made if there is none; -1 where all are taken. */
static int row_of(struct ledger_file *file, uint64_t key, bool *is_new) {
    *is_new = false;
    for (int row = 0; row < LEDGER_ROWS; row++) {
        uint64_t found = atomic_load(&file->rows[row].key);
        if (found == 0 && atomic_compare_exchange_strong(&file->rows[row].key, &found, key))
            *is_new = true;
        if (*is_new || found == key)
            return row;
    }
    return -1;
}

/* The limit of a row is the slice's: it is set by whoever comes first, and changed by whoever comes when nobody else
 * lives, as when a program is started again with another limit. */
static void agree(struct attachment *attached, enum quota_vendor vendor, int ordinal, int row) {
    const struct quota_limits *limits = quota_limits();
    struct ledger_row *shared = &attached->file->rows[row];
    uint64_t none = 0, bytes = limits->memory_bytes[ordinal];
    if (attached->is_first || atomic_compare_exchange_strong(&shared->limit_bytes, &none, bytes)) {
        atomic_store(&shared->ordinal, (uint32_t)ordinal);
        atomic_store(&shared->vendor, vendor);
        atomic_store(&shared->cores_percent, limits->cores_percent[ordinal]);
        atomic_store(&shared->limit_bytes, bytes);
    } else if (none != bytes) {
        quota_say("device %d: the slice's limit is %llu bytes, not this process's %llu", ordinal,
                  (unsigned long long)none, (unsigned long long)bytes);
    }
}

static int row_slow(struct attachment *attached, enum quota_vendor vendor, int ordinal, uint64_t (*key_of)(int)) {
    uint64_t key = key_of(ordinal);
    uint32_t unnamed[2] = {vendor, (uint32_t)ordinal};
    bool is_new;
    int row = row_of(attached->file, key ? key : quota_hash(unnamed, sizeof unnamed), &is_new);
    if (row < 0) {
        quota_say("the ledger has no row left for device %d", ordinal);
        return quota_limits()->closed ? ROW_CLOSED : ROW_UNLIMITED;
    }
    agree(attached, vendor, ordinal, row);
    if (key)
        atomic_store(&attached->rows[vendor][ordinal], (int8_t)(row + 1));
    return row;
}

int quota_row(enum quota_vendor vendor, int ordinal, uint64_t (*key_of)(int ordinal)) {
    const struct quota_limits *limits = quota_limits();
    if (limits->off || ordinal < 0 || ordinal >= QUOTA_MOST_DEVICES)
        return ROW_UNLIMITED;
    if (limits->broken)
        return limits->closed ? ROW_CLOSED : ROW_UNLIMITED;
    if (!limits->memory_bytes[ordinal] && !limits->cores_percent[ordinal])
        return ROW_UNLIMITED;
    struct attachment *attached = ledger_attach();
    if (!attached)
        return limits->closed ? ROW_CLOSED : ROW_UNLIMITED;
    int known = atomic_load_explicit(&attached->rows[vendor][ordinal], memory_order_relaxed);
    return known > 0 ? known - 1 : row_slow(attached, vendor, ordinal, key_of);
}

int ledger_find(uint64_t key) {
    struct attachment *attached = ledger_attach();
    for (int row = 0; attached && row < LEDGER_ROWS; row++)
        if (atomic_load(&attached->file->rows[row].key) == key)
            return row;
    return ROW_UNLIMITED;
}

struct ledger_row *ledger_row_at(int row) {
    struct attachment *attached = ledger_attach();
    return attached ? &attached->file->rows[row] : NULL;
}

uint64_t quota_hash(const void *bytes, size_t length) {
    uint64_t hash = 14695981039346656037ull;
    for (size_t at = 0; at < length; at++)
        hash = (hash ^ ((const unsigned char *)bytes)[at]) * 1099511628211ull;
    return hash ? hash : 1;
}
