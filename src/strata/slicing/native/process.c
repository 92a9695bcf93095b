/* Which processes are still there. A pid alone is not enough, since pids are used again: with its start time it is. */
#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Read fields 3, 20 and 22 of /proc/PID/stat, which are counted from behind the command's name: that may hold
 * spaces and parentheses. */
static bool read_stat(const char *path, char *state, uint64_t *num_threads, uint64_t *start) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    char text[1024];
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0)
        return false;
    text[length] = '\0';
    const char *at = strrchr(text, ')');
    if (!at || at[1] != ' ')
        return false;
    at += 2;
    *state = *at;
    for (int field = 3; field <= 22; field++) {
        uint64_t value = 0;
        for (; *at && *at != ' '; at++)
            value = value * 10 + (uint64_t)(*at - '0');
        if (field == 20)
            *num_threads = value;
        if (field == 22) {
            *start = value;
            return true;
        }
        if (*at++ != ' ')
            return false;
    }
    return false;
}

uint64_t process_self(void) {
    char state;
    uint64_t num_threads, start = 0;
    if (!read_stat("/proc/self/stat", &state, &num_threads, &start))
        start = 0;
    return OWNER(OWNER_LIVE, (uint64_t)getpid(), start);
}

bool process_is_gone(uint64_t owner, uint64_t self, bool is_thorough) {
    pid_t pid = (pid_t)OWNER_PID(owner);
    if (pid == (pid_t)OWNER_PID(self))
        return OWNER_START(owner) != OWNER_START(self);
    int known = errno;
    bool is_missing = kill(pid, 0) != 0 && errno == ESRCH;
    errno = known;
    if (is_missing || !is_thorough)
        return is_missing;
    char path[32], state;
    uint64_t num_threads, start;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    // There, but hidden from us (another user's, hidepid): the process counts as alive.
    bool is_read = read_stat(path, &state, &num_threads, &start);
    errno = known;
    if (!is_read)
        return false;
    // The driver has taken back a zombie's memory. One whose other threads run on has only lost its first thread.
    bool is_zombie = (state == 'Z' || state == 'X') && num_threads <= 1;
    return is_zombie || (OWNER_START(owner) && (start & OWNER_START_MASK) != OWNER_START(owner));
}
