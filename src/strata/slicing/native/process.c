/* What /proc says of processes. A pid alone is not enough, since pids are used again: who has it
 * later than the owner wrote itself down is another. Times are in ticks since boot, which /proc has 100 of a second. */
#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PF_EXITING 4u /* a bit of the 9th field */

struct status {
    char state;
    uint64_t flags, num_threads, start;
};

/* The digits at `text`. Not strtoul(), which newer headers make a symbol of 2.38. */
static uint64_t number(const char *text) {
    uint64_t value = 0;
    for (; *text >= '0' && *text <= '9'; text++)
        value = value * 10 + (uint64_t)(*text - '0');
    return value;
}

/* Read fields 3, 9, 20 and 22 of /proc/PID/stat, which are counted from behind the command's name: that may hold
 * spaces and parentheses. */
static bool read_stat(const char *path, struct status *status) {
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
    status->state = *at;
    for (int field = 3; field <= 22; field++) {
        uint64_t value = number(at);
        while (*at && *at != ' ')
            at++;
        if (field == 9)
            status->flags = value;
        if (field == 20)
            status->num_threads = value;
        if (field == 22) {
            status->start = value;
            return true;
        }
        if (*at++ != ' ')
            return false;
    }
    return false;
}

/* Whether /proc numbers processes as we do: after `unshare --pid` it is the outer namespace's until mounted again. */
static bool is_proc_ours(void) {
    char text[24];
    ssize_t length = readlink("/proc/self", text, sizeof text - 1);
    if (length <= 0)
        return false;
    text[length] = '\0';
    return number(text) == (uint64_t)getpid();
}

uint64_t process_self(void) {
    struct timespec now; // not our start, which /proc alone has: a look there is felt in every program's start
    clock_gettime(CLOCK_BOOTTIME, &now);
    return OWNER(OWNER_LIVE, (uint64_t)getpid(), (uint64_t)now.tv_sec * 100 + (uint64_t)now.tv_nsec / 10000000);
}

uint32_t process_namespace(void) {
    char text[32] = ""; /* pid:[4026531836] */
    ssize_t length = readlink("/proc/self/ns/pid", text, sizeof text - 1);
    return length > 5 ? (uint32_t)number(text + 5) : 0;
}

bool process_is_another(uint64_t owner) {
    pid_t pid = (pid_t)OWNER_PID(owner);
    return pid != getpid() && (kill(pid, 0) == 0 || errno != ESRCH);
}

enum process_state process_look(uint64_t owner, uint32_t namespace) {
    char path[32];
    struct status status;
    // Our own pid: what this process was before exec.
    if (!namespace || namespace != process_namespace() || (pid_t)OWNER_PID(owner) == getpid())
        return PROCESS_UNKNOWN;
    if (!process_is_another(owner))
        return PROCESS_GONE; // as most that are looked at; no file of /proc is opened
    if (!is_proc_ours())
        return PROCESS_UNKNOWN;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)OWNER_PID(owner));
    if (!read_stat(path, &status) || status.start > OWNER_TICKS(owner))
        return PROCESS_GONE;
    // A zombie has ended, unless it is only the first of its threads that has.
    if (status.state == 'Z' || status.state == 'X')
        return status.num_threads > 1 ? PROCESS_ENDING : PROCESS_GONE;
    return status.flags & PF_EXITING ? PROCESS_ENDING : PROCESS_ALIVE;
}
