/* The limits of this process, from its environment: the contract is fleet/slices.py's, HAMi's names included. Where that
 * has none, from a file that the webhook puts into pods: who logs in, or is started with an empty environment, is in the
 * slice as well. */
#include "quota.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifndef QUOTA_LIMITS_FILE
#define QUOTA_LIMITS_FILE "/etc/strata/limits" /* NAME=VALUE lines */
#endif

/* Among what the loader has written by then: in .bss it lies on two pages more, which every start would pay for. */
static struct quota_limits limits __attribute__((section(".data")));
_Atomic(const struct quota_limits *) quota_limits_read;

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

/* What NAME=VALUE gives for a name, up to where that ends: NULL where another name stands there. */
static const char *behind_name(const char *setting, const char *name) {
    while (*name && *setting == *name) // most differ in their first letter: an environment has dozens of others
        setting++, name++;
    return *name ? NULL : setting;
}

/* The environment, or the lines of the file. */
static char **settings;

static const char *setting(const char *name) {
    for (char **at = settings; at && *at; at++) {
        const char *rest = behind_name(*at, name);
        if (rest && *rest == '=')
            return rest + 1;
    }
    return NULL;
}

static bool has_limits(void) {
    static const char *const names[] = {"STRATA_MEMORY_LIMIT", "STRATA_CORES_LIMIT", "STRATA_QUOTA=",
                                        "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT"};
    for (char **at = settings; at && *at; at++)
        for (size_t name = 0; name < sizeof names / sizeof *names; name++)
            if (behind_name(*at, names[name]))
                return true;
    return false;
}

static void read_file(void) {
    static char text[4096], *lines[64];
    int file = open(QUOTA_LIMITS_FILE, O_RDONLY | O_CLOEXEC | O_NOCTTY), count = 0;
    ssize_t length = file < 0 ? 0 : read(file, text, sizeof text - 1);
    if (file >= 0)
        close(file);
    for (char *at = text; length > 0 && at < text + length && count < 63; count++) {
        lines[count] = at;
        char *end = strchr(at, '\n');
        if (!end)
            end = text + length;
        *end = '\0';
        at = end + 1;
    }
    if (length > 0)
        settings = lines;
}

struct amounts {
    uint64_t of[QUOTA_MOST_DEVICES];
    bool is_set[QUOTA_MOST_DEVICES];
};

static uint64_t amount(const char *setting, const char *text, reader *read) {
    uint64_t value = 0;
    if (!read(text, &value)) {
        limits.broken = true;
        value = 0;
        quota_say("%.*s=%s is no limit (16Gi or a number of bytes for memory, 30 for cores); %s",
                  (int)(strchr(setting, '=') - setting), setting, text,
                  limits.closed ? "every allocation is refused" : "there is no limit");
    }
    return value;
}

/* NAME_<device> decides, then NAME. What is set already stays. */
static void read_amounts(const char *name, reader *read, struct amounts *amounts) {
    const char *all = NULL, *text;
    for (char **at = settings; at && *at; at++) {
        const char *rest = behind_name(*at, name);
        int device = 0;
        if (!rest)
            continue;
        if (*rest == '=' && !all)
            all = *at;
        if (*rest++ != '_' || *rest < '0' || *rest > '9')
            continue;
        for (; *rest >= '0' && *rest <= '9' && device < QUOTA_MOST_DEVICES; rest++)
            device = 10 * device + (*rest - '0');
        if (*rest != '=' || device >= QUOTA_MOST_DEVICES || amounts->is_set[device] || !*(text = skip_spaces(rest + 1)))
            continue;
        amounts->is_set[device] = true;
        amounts->of[device] = amount(*at, text, read);
    }
    if (!all || !*(text = skip_spaces(strchr(all, '=') + 1)))
        return;
    uint64_t value = amount(all, text, read);
    for (int device = 0; device < QUOTA_MOST_DEVICES; device++)
        if (!amounts->is_set[device]) {
            amounts->is_set[device] = true;
            amounts->of[device] = value;
        }
}

static bool is_word(const char *name, const char *word) {
    const char *text = setting(name);
    if (!text)
        return false;
    for (; *text && *word; text++, word++)
        if ((*text | 0x20) != (*word | 0x20))
            return false;
    return !*text && !*word;
}

static int hex(char digit) {
    int letter = digit | 0x20;
    return digit >= '0' && digit <= '9' ? digit - '0' : letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

uint64_t quota_key_of_uuid(const char *text) {
    unsigned char uuid[16];
    int digits = 0;
    if (strnlen(text, 4) < 4 || text[3] != '-')
        return 0;
    for (const char *at = text + 4; *at && digits < 32; at++) {
        int value = hex(*at);
        if (value < 0)
            continue;
        uuid[digits / 2] = (unsigned char)(digits % 2 ? uuid[digits / 2] << 4 | value : value);
        digits++;
    }
    return digits == 32 ? quota_hash(uuid, sizeof uuid) : 0;
}

static void read_device(void) {
    const char *uuid = setting("STRATA_DEVICE_UUID");
    limits.device_key = uuid ? quota_key_of_uuid(uuid) : 0;
    for (limits.device = 0; limits.device < QUOTA_MOST_DEVICES - 1; limits.device++)
        if (limits.memory_bytes[limits.device] || limits.cores_percent[limits.device])
            return;
}

static void read_policy(void) {
    const char *policy = setting("STRATA_CORES_POLICY"), *priority = setting("STRATA_CORES_PRIORITY");
    limits.is_lent = is_word("STRATA_CORES_POLICY", "lend");
    if (policy && *policy && !limits.is_lent && !is_word("STRATA_CORES_POLICY", "fixed"))
        quota_say("STRATA_CORES_POLICY=%s is neither fixed nor lend; it is taken for fixed", policy);
    if (priority && *priority >= '0' && *priority <= '9' && !priority[1])
        limits.priority = (uint32_t)(*priority - '0');
    else if (priority && *priority)
        quota_say("STRATA_CORES_PRIORITY=%s is not a digit; it is taken for 0", priority);
}

/* Both texts, one behind the other; how long they are. Not snprintf, here and elsewhere on the way of every start: its pages
 * alone cost a start more than all of this file. */
static size_t joined(char *to, size_t room, const char *text, const char *end) {
    size_t length = strlen(text), more = strlen(end);
    if (length + more < room) {
        memcpy(to, text, length);
        memcpy(to + length, end, more + 1);
    }
    return length + more;
}

/* Copied: programs that set their title write over the environment. Without a ledger of its own a limit is shared
 * by what runs as one user under one /tmp, which is what a container is. */
static void find_ledger(void) {
    static char path[4096];
    const char *ours = setting("STRATA_LEDGER"), *hami = setting("CUDA_DEVICE_MEMORY_SHARED_CACHE");
    size_t length;
    if (ours && *ours)
        length = joined(path, sizeof path, ours, "");
    else if (hami && *hami)
        length = joined(path, sizeof path, hami, ".strata");
    else
        length = (size_t)snprintf(path, sizeof path, "/tmp/strata-quota.%u", (unsigned)geteuid());
    limits.ledger = length < sizeof path ? path : "";
    limits.is_ledger_named = ours != NULL;
    const char *inode = ours && *ours ? setting("STRATA_LEDGER_INODE") : NULL;
    for (; inode && *inode >= '0' && *inode <= '9'; inode++)
        limits.ledger_inode = 10 * limits.ledger_inode + (uint64_t)(*inode - '0');
}

static void read_context(void) {
    const char *text = setting("STRATA_CONTEXT_BYTES");
    if (!text || !*(text = skip_spaces(text)))
        return;
    limits.is_context_given = memory(text, &limits.context_bytes) || strcmp(text, "0") == 0;
    if (!limits.is_context_given)
        quota_say("STRATA_CONTEXT_BYTES=%s is no amount of memory (300Mi, 0); contexts are measured", text);
}

static void read_settings(void) {
    settings = environ;
    if (!has_limits())
        read_file();
    find_ledger();
    limits.closed = !is_word("STRATA_QUOTA_FAIL", "open");
    limits.off = true;
    if (is_word("STRATA_QUOTA", "off"))
        return;
    bool is_hami_on = !is_word("CUDA_DISABLE_CONTROL", "true") && !is_word("CUDA_DISABLE_CONTROL", "1");
    struct amounts bytes = {0}, percent = {0};
    read_amounts("STRATA_MEMORY_LIMIT", memory, &bytes);
    read_amounts("STRATA_CORES_LIMIT", cores, &percent);
    if (is_hami_on) {
        read_amounts("CUDA_DEVICE_MEMORY_LIMIT", hami_memory, &bytes);
        read_amounts("CUDA_DEVICE_SM_LIMIT", cores, &percent);
    }
    for (int device = 0; device < QUOTA_MOST_DEVICES; device++) {
        limits.memory_bytes[device] = bytes.of[device];
        limits.cores_percent[device] = (uint32_t)percent.of[device];
        limits.has_cores |= percent.of[device] != 0;
        limits.off &= !bytes.of[device] && !percent.of[device];
    }
    limits.off &= !limits.broken;
    read_context();
    read_policy();
    read_device();
}

/* Before the program can change what it was started with. Nothing is said here unless a limit cannot be read. */
__attribute__((constructor)) static void read_early(void) {
    quota_limits();
}

const struct quota_limits *quota_limits_slow(void) {
    static _Atomic bool is_begun;
    if (!atomic_exchange(&is_begun, true)) {
        read_settings();
        atomic_store_explicit(&quota_limits_read, &limits, memory_order_release);
    }
    for (unsigned turn = 0; !atomic_load_explicit(&quota_limits_read, memory_order_acquire); turn++)
        quota_wait(turn);
    return &limits;
}
