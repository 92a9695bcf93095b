/* This process's attachment to the ledger: the file mapped once, a slot taken at the first charge (again after a fork),
 * and the rows of the devices it uses. */
#include "ledger.h"
#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

_Atomic(struct attachment *) ledger_attachment;

#define CLOSELY 8

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

/* The C library's own is a symbol of 2.33, and the one before is in no header any more. */
static bool look_at(int file, struct stat *found) {
    return syscall(SYS_fstat, file, found) == 0;
}

/* Users of one container share its limit: everybody may write. Made beside and linked whole, so that nobody finds it
 * between its making and its mode. */
static int make_file(const char *path) {
    char beside[4096 + 32];
    if (snprintf(beside, sizeof beside, "%s.%d", path, (int)getpid()) >= (int)sizeof beside)
        return -1;
    int file = open(beside, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file >= 0 && (fchmod(file, 0666) != 0 || link(beside, path) != 0)) {
        close(file);
        file = -1;
    }
    unlink(beside);
    return file;
}

static int open_file(const char *path) {
    for (int turn = 0; turn < 3; turn++) {
        int file = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (file >= 0 || errno != ENOENT || quota_limits()->ledger_inode)
            return file;
        file = make_file(path);
        if (file >= 0 || errno != EEXIST)
            return file;
    }
    return -1;
}

/* What is another user's may be cut short at any time, and then ends every program that maps it: only root's and our
 * own are trusted, but where `strata run` or a pod named the file. */
static const char *distrust(const struct stat *found) {
    if (!S_ISREG(found->st_mode))
        return "it is not a file";
    if (quota_limits()->ledger_inode && quota_limits()->ledger_inode != found->st_ino)
        return "it is not the one that the slice began with";
    return quota_limits()->is_ledger_named || found->st_uid == 0 || found->st_uid == geteuid() ? NULL : "it belongs to another user";
}

/* Whole on the file system, or a full tmpfs would kill the program at some later charge. What is no ledger of ours is
 * not touched. */
static const char *make_whole(int file, off_t size) {
    struct {
        uint64_t magic;
        uint32_t version;
    } head = {0};
    if (pread(file, &head, sizeof head, 0) < 0)
        return strerror(errno);
    const char *why = head.magic ? judge(head.magic, head.version) : NULL;
    if (!why && size < (off_t)sizeof(struct ledger_file) && fallocate(file, 0, 0, sizeof(struct ledger_file)) != 0 &&
        (errno != EOPNOTSUPP || ftruncate(file, sizeof(struct ledger_file)) != 0))
        why = strerror(errno);
    return why;
}

static const char *map(int file, off_t size, struct ledger_file **start) {
    const char *why = make_whole(file, size);
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

static const char *take_slot(struct attachment *attached, int file) {
    struct stat found;
    const char *why = look_at(file, &found) ? distrust(&found) : strerror(errno);
    if (!why)
        why = map(file, found.st_size, &attached->file);
    if (why)
        return why;
    if (!quota_guard(attached->file, sizeof *attached->file, &attached->state))
        return "no memory";
    // Where many start together, each asking closely, or about all the others, would take long.
    uint32_t namespace = process_namespace();
    uint32_t asked_in = atomic_load(&attached->file->slots_used) <= CLOSELY ? 0 : namespace;
    bool has_others = slots_sweep(attached->file, file, -1, asked_in, CLOSELY);
    int slot = slots_take(attached->file, file, namespace);
    if (slot < 0) {
        why = errno == ESTALE ? "it was cut short while in use" : errno ? strerror(errno) : "every slot is taken";
        quota_unguard(attached->file);
        munmap(attached->file, sizeof *attached->file);
        return why;
    }
    attached->slot = (uint32_t)slot;
    attached->device = found.st_dev;
    attached->inode = found.st_ino;
    // Again behind our lock: of two that start together at most one is the first.
    attached->is_first = !has_others && !slots_sweep(attached->file, file, slot, asked_in, CLOSELY);
    return NULL;
}

/* Out of the way of programs that number their files themselves. */
static int keep(int file) {
    static const int places[] = {1000, 250};
    int kept = -1;
    for (size_t at = 0; kept < 0 && at < sizeof places / sizeof *places; at++)
        kept = fcntl(file, F_DUPFD_CLOEXEC, places[at]);
    if (kept >= 0)
        close(file);
    return kept >= 0 ? kept : file;
}

/* The file that has our slot's lock stays open in the queue of a socket, which is kept. A forked child inherits the socket
 * with the device's descriptors, and with the last copy of those the driver frees what we hold. Linux ends the files that
 * a task closes at once, by exit or exec, last one first (task_work, since 4.3): a descriptor of a number behind the
 * device's would be unlocked before the device's is closed, one before it is not to be had for sure. What a socket's end
 * closes comes after all those. */
static void keep_locked(int file) {
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof file)];
    } control = {.header = {.cmsg_len = CMSG_LEN(sizeof file), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    struct iovec word = {"", 1};
    struct msghdr message = {.msg_iov = &word, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    int ends[2] = {-1, -1};
    memcpy(CMSG_DATA(&control.header), &file, sizeof file);
    bool is_sent = socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends) == 0 && sendmsg(ends[0], &message, 0) == 1;
    keep(is_sent ? ends[1] : file); // where sockets are forbidden
    if (ends[0] >= 0)
        close(ends[0]);
    if (ends[0] >= 0 && !is_sent)
        close(ends[1]);
    if (is_sent)
        close(file);
}

/* The file once more, with locks of its own: by its name, and where another has that by now, through /proc, whose entries
 * are made when a process first looks. */
static int open_again(int file) {
    struct stat own, other;
    int again = open(quota_limits()->ledger, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (again >= 0 && look_at(file, &own) && look_at(again, &other) && own.st_dev == other.st_dev &&
        own.st_ino == other.st_ino)
        return again;
    if (again >= 0)
        close(again);
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    return open(path, O_RDWR | O_CLOEXEC);
}

static bool attach(struct attachment *attached) {
    int known = errno, file = open_file(quota_limits()->ledger), locking = file < 0 ? -1 : open_again(file);
    const char *why = locking < 0 ? strerror(errno) : take_slot(attached, locking);
    if (!why) {
        keep_locked(locking);
        attached->descriptor = keep(file);
        heirs_expect(attached);
    }
    if (why && locking >= 0)
        close(locking);
    if (why && file >= 0)
        close(file);
    errno = known;
    if (why)
        quota_say("no ledger at %s: %s; %s", quota_limits()->ledger, why,
                  quota_limits()->closed ? "every allocation is refused" : "there is no limit");
    return why == NULL;
}

static bool is_the_file(const struct attachment *attached, int file) {
    struct stat found;
    return file >= 0 && look_at(file, &found) && found.st_dev == attached->device && found.st_ino == attached->inode;
}

bool ledger_sweep(struct attachment *attached) {
    int known = errno, file = attached->descriptor;
    if (atomic_load(&attached->file->owners[attached->slot]) == 0) { // ours to write, and never that
        atomic_store(&attached->state, QUOTA_LOST);
        return false;
    }
    // One thread at a time: what another's sweep has locked would count as alive.
    for (unsigned turn = 0; atomic_exchange(&attached->sweeping, 1); turn++)
        quota_wait(turn);
    file = is_the_file(attached, file) ? open_again(file) : open(quota_limits()->ledger, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    // Another file in its place knows nothing of who lives.
    if (is_the_file(attached, file))
        slots_sweep(attached->file, file, (int)attached->slot, 0, LEDGER_SLOTS);
    if (file >= 0)
        close(file);
    atomic_store(&attached->sweeping, 0);
    errno = known;
    return true;
}

void ledger_begin(void) {
    if (!quota_limits()->off && !quota_limits()->broken)
        ledger_attach();
}

struct attachment *ledger_attach_slow(void) {
    struct attachment *attached = atomic_load(&ledger_attachment);
    if (!attached) {
        struct attachment *fresh = quota_wiped(sizeof *fresh);
        if (!fresh)
            return NULL;
        // A loser's page is left: this happens once, and a fork-wiped page may be in the list of fork.c.
        attached = atomic_compare_exchange_strong(&ledger_attachment, &attached, fresh) ? fresh : attached;
    }
    uint32_t state = EMPTY;
    if (atomic_compare_exchange_strong(&attached->state, &state, ATTACHING)) {
        uint32_t found = attach(attached) ? ATTACHED : REFUSED;
        state = ATTACHING; // unless it was lost meanwhile
        state = atomic_compare_exchange_strong(&attached->state, &state, found) ? found : state;
    }
    for (unsigned turn = 0; state == ATTACHING; turn++) {
        quota_wait(turn);
        state = atomic_load_explicit(&attached->state, memory_order_acquire);
    }
    return state == ATTACHED ? attached : NULL;
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

static int row_slow(struct attachment *attached, enum quota_vendor vendor, int ordinal, int limit,
                    uint64_t (*key_of)(int)) {
    uint64_t key = key_of(ordinal);
    uint32_t unnamed[2] = {vendor, (uint32_t)ordinal};
    bool is_new;
    int row = row_of(attached->file, key ? key : quota_hash(unnamed, sizeof unnamed), &is_new);
    if (row < 0) {
        quota_say("the ledger has no row left for device %d", ordinal);
        return quota_limits()->closed ? ROW_CLOSED : ROW_UNLIMITED;
    }
    agree(attached, vendor, limit, row);
    if (key)
        atomic_store(&attached->rows[vendor][ordinal], (int8_t)(row + 1));
    return row;
}

/* Which of this process's limits is a device's. `strata run --device` names it by UUID, since whoever is started may
 * number devices anew (CUDA_VISIBLE_DEVICES); without one, by the number it has here. -1: none, for certain. */
static int limit_of(enum quota_vendor vendor, int ordinal, uint64_t (*key_of)(int)) {
    const struct quota_limits *limits = quota_limits();
    uint64_t key = vendor == NVIDIA && limits->device_key ? key_of(ordinal) : 0;
    return !key ? ordinal : key == limits->device_key ? limits->device : -1;
}

QUOTA_SELDOM static int find_row(enum quota_vendor vendor, int ordinal, uint64_t (*key_of)(int)) {
    const struct quota_limits *limits = quota_limits();
    if (limits->off)
        return ROW_UNLIMITED;
    if (limits->broken)
        return limits->closed ? ROW_CLOSED : ROW_UNLIMITED;
    bool has_limit = limits->memory_bytes[ordinal] || limits->cores_percent[ordinal];
    if (!has_limit && !limits->device_key) {
        // Others of the slice may know the device by another number, under which it has a limit.
        uint64_t key = key_of(ordinal);
        return key ? ledger_find(key) : ROW_UNLIMITED;
    }
    struct attachment *attached = ledger_attach();
    if (!attached)
        return limits->closed ? ROW_CLOSED : ROW_UNLIMITED;
    int known = atomic_load_explicit(&attached->rows[vendor][ordinal], memory_order_relaxed);
    if (known > 0)
        return known - 1;
    int limit = known == ROW_UNLIMITED ? -1 : limit_of(vendor, ordinal, key_of);
    if (limit >= 0 && (limits->memory_bytes[limit] || limits->cores_percent[limit]))
        return row_slow(attached, vendor, ordinal, limit, key_of);
    if (limit < 0)
        atomic_store(&attached->rows[vendor][ordinal], ROW_UNLIMITED);
    return ROW_UNLIMITED;
}

int quota_row(enum quota_vendor vendor, int ordinal, uint64_t (*key_of)(int ordinal)) {
    if (ordinal < 0 || ordinal >= QUOTA_MOST_DEVICES)
        return ROW_UNLIMITED;
    quota_notice_fork();
    // Who is not limited is never attached.
    struct attachment *attached = atomic_load_explicit(&ledger_attachment, memory_order_acquire);
    if (__builtin_expect(attached && atomic_load_explicit(&attached->state, memory_order_acquire) == ATTACHED, 1)) {
        int known = atomic_load_explicit(&attached->rows[vendor][ordinal], memory_order_relaxed);
        if (__builtin_expect(known > 0, 1))
            return known - 1;
    }
    return find_row(vendor, ordinal, key_of);
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
