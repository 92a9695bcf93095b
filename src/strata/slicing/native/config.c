/* The limits of this process, from its environment: the contract is fleet/slices.py's, HAMi's names included. */
#include "quota.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct quota_limits limits;
static _Atomic int state; /* 0 unread, 1 being read, 2 read */

/* Read digits with an optional fraction; NULL without any. */
static const char *number(const char *text, double *value) {
    const char *at = text;
    *value = 0;
    for (; *at >= '0' && *at <= '9'; at++)
        *value = 10 * *value + (*at - '0');
    if (at == text)
        return NULL;
    if (*at == '.') {
        double place = 0.1;
        for (at++; *at >= '0' && *at <= '9'; at++, place /= 10)
            *value += place * (*at - '0');
    }
    return at;
}

static const char *skip_spaces(const char *text) {
    while (*text == ' ' || *text == '\t')
        text++;
    return text;
}

static double power(double base, int exponent) {
    double result = 1;
    while (exponent-- > 0)
        result *= base;
    return result;
}

/* `17179869184`, `16Gi`, `16GiB`, `80GB`; false: no amount of memory, or none left. */
static bool memory(const char *text, uint64_t *bytes) {
    double value;
    const char *at = number(text, &value);
    if (!at)
        return false;
    bool is_bare = *(at = skip_spaces(at)) == '\0';
    if (!is_bare) {
        const char *letter = strchr("kKMGTPE", *at);
        int thousands = 0;
        if (letter && *at) {
            thousands = *at == 'k' || *at == 'K' ? 1 : (int)(letter - "kKMGTPE");
            at++;
        }
        bool is_binary = thousands && *at == 'i';
        if (is_binary)
            at++;
        if (*at == 'B')
            at++;
        else if (!is_binary)
            return false; /* 16G could be either */
        if (*skip_spaces(at))
            return false;
        value *= power(is_binary ? 1024 : 1000, thousands);
    } else if (strchr(text, '.')) {
        return false;
    }
    if (value < 1 || value > 1e18)
        return false;
    *bytes = (uint64_t)value;
    return true;
}

/* HAMi's: a number with k, m or g; 0 is no limit. */
static bool hami_memory(const char *text, uint64_t *bytes) {
    double value;
    const char *at = number(text, &value);
    if (!at || strchr(text, '.'))
        return false;
    const char *letter = *at ? strchr("kmgKMG", *at) : NULL;
    if (letter) {
        value *= power(1024, 1 + (int)(letter - "kmgKMG") % 3);
        at++;
    }
    *bytes = (uint64_t)value;
    return !*skip_spaces(at) && value < 1e18;
}

/* A percentage; 0 and 100 are no limit. */
static bool cores(const char *text, uint64_t *percent) {
    double value;
    const char *at = number(text, &value);
    if (!at || strchr(text, '.') || *skip_spaces(at) || value > 100)
        return false;
    *percent = value >= 100 ? 0 : (uint64_t)value;
    return true;
}

typedef bool reader(const char *text, uint64_t *value);

/* The first variable that is set decides: NAME_<device>, then NAME. Returns whether one is set. */
static bool first(const char *name, int device, reader *read, uint64_t *value) {
    char one[64];
    snprintf(one, sizeof one, "%s_%d", name, device);
    const char *names[] = {one, name};
    for (int at = 0; at < 2; at++) {
        const char *text = getenv(names[at]);
        if (!text || !*(text = skip_spaces(text)))
            continue;
        if (!read(text, value)) {
            limits.broken = true;
            *value = 0;
            quota_say("%s=%s is no limit (16Gi or a number of bytes for memory, 30 for cores); %s", names[at], text,
                      limits.closed ? "every allocation is refused" : "there is no limit");
        }
        return true;
    }
    return false;
}

/* Whether a variable begins so: most programs have none, and every one of theirs is started with this. */
static bool is_set(const char *name) {
    size_t length = strlen(name);
    for (char **at = environ; at && *at; at++)
        if (strncmp(*at, name, length) == 0)
            return true;
    return false;
}

static bool is_word(const char *name, const char *word) {
    const char *text = getenv(name);
    if (!text)
        return false;
    for (; *text && *word; text++, word++)
        if ((*text | 0x20) != (*word | 0x20))
            return false;
    return !*text && !*word;
}

/* Copied: programs that set their title write over the environment. Without a ledger of its own a limit is shared
 * by what runs as one user under one /tmp, which is what a container is. */
static void find_ledger(void) {
    static char path[4096];
    const char *ours = getenv("STRATA_LEDGER"), *hami = getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE");
    int length;
    if (ours && *ours)
        length = snprintf(path, sizeof path, "%s", ours);
    else if (hami && *hami)
        length = snprintf(path, sizeof path, "%s.strata", hami);
    else
        length = snprintf(path, sizeof path, "/tmp/strata-quota.%u", (unsigned)geteuid());
    limits.ledger = length < (int)sizeof path ? path : "";
}

static void read_environment(void) {
    find_ledger();
    limits.closed = !is_word("STRATA_QUOTA_FAIL", "open");
    limits.off = true;
    if (is_word("STRATA_QUOTA", "off"))
        return;
    bool is_hami_on = !is_word("CUDA_DISABLE_CONTROL", "true") && !is_word("CUDA_DISABLE_CONTROL", "1");
    bool has_memory = is_set("STRATA_MEMORY_LIMIT"), has_hami_memory = is_hami_on && is_set("CUDA_DEVICE_MEMORY_LIMIT");
    bool has_cores = is_set("STRATA_CORES_LIMIT"), has_hami_cores = is_hami_on && is_set("CUDA_DEVICE_SM_LIMIT");
    bool has_any = has_memory || has_hami_memory || has_cores || has_hami_cores;
    for (int device = 0; has_any && device < QUOTA_MOST_DEVICES; device++) {
        uint64_t bytes = 0, percent = 0;
        if (!(has_memory && first("STRATA_MEMORY_LIMIT", device, memory, &bytes)) && has_hami_memory)
            first("CUDA_DEVICE_MEMORY_LIMIT", device, hami_memory, &bytes);
        if (!(has_cores && first("STRATA_CORES_LIMIT", device, cores, &percent)) && has_hami_cores)
            first("CUDA_DEVICE_SM_LIMIT", device, cores, &percent);
        limits.memory_bytes[device] = bytes;
        limits.cores_percent[device] = (uint32_t)percent;
        limits.has_cores |= percent != 0;
        limits.off &= !bytes && !percent;
    }
    limits.off &= !limits.broken;
}

const struct quota_limits *quota_limits(void) {
    if (__builtin_expect(atomic_load_explicit(&state, memory_order_acquire) == 2, 1))
        return &limits;
    int unread = 0;
    if (atomic_compare_exchange_strong(&state, &unread, 1)) {
        read_environment();
        atomic_store_explicit(&state, 2, memory_order_release);
    } else {
        for (unsigned turn = 0; atomic_load_explicit(&state, memory_order_acquire) != 2; turn++)
            quota_wait(turn);
    }
    return &limits;
}
