/* What the library says: one line on stderr, and never the same one twice in a process. */
#include "quota.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#define MOST_LINES 16

static _Atomic uint64_t said[MOST_LINES];

static bool is_new(uint64_t line) {
    for (int at = 0; at < MOST_LINES; at++) {
        uint64_t free_place = 0;
        if (atomic_compare_exchange_strong(&said[at], &free_place, line))
            return true;
        if (free_place == line)
            return false;
    }
    return false;
}

void quota_say(const char *format, ...) {
    char line[512] = "strata-quota: ";
    const size_t prefix = sizeof("strata-quota: ") - 1;
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line + prefix, sizeof line - prefix - 1, format, arguments);
    va_end(arguments);
    if (length < 0)
        return;
    size_t whole = prefix + (size_t)length;
    if (whole > sizeof line - 2)
        whole = sizeof line - 2;
    line[whole++] = '\n';
    if (!is_new(quota_hash(line, whole)))
        return;
    // One call: lines of several processes do not mix. Nothing can be done where stderr is gone.
    ssize_t written = write(STDERR_FILENO, line, whole);
    (void)written;
}
