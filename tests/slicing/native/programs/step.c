/* step WHAT STRIDE: kills a process at every STRIDE-th instruction of what it does, and each time looks whether the whole
 * slice can be had afterwards. Prints how many times. WHAT:
 *
 *   first    the first allocation of a process: the ledger is mapped, a slot taken, the memory charged
 *   alloc    an allocation
 *   free     a free
 *   refused  an allocation that does not fit: it looks twice, with a sweep in between
 *   sweep    an allocation that fits once a killed process's slot is swept
 */
#define _GNU_SOURCE
#include "driver.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
enum { WHOLE = 1024 };

static struct Driver cu;

static void end(const char *why)
{
    printf("%s\n", why);
    exit(1);
}

/* What the child does. It stops itself where the stepping begins. */
static void act(const char *what)
{
    Address first = 0, second = 0;
    int is_free = strcmp(what, "free") == 0, is_alloc = strcmp(what, "alloc") == 0;
    if (is_alloc && cu.alloc(&first, 4 * MIB) != 0)
        _exit(3);
    if (is_free && cu.alloc(&first, 600 * MIB) != 0)
        _exit(3);
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    raise(SIGSTOP);
    int result = is_free ? cu.free(first) : cu.alloc(&second, 600 * MIB);
    _exit(result == (strcmp(what, "refused") ? 0 : 2) ? 0 : 4);
}

/* Somebody who holds 600 MiB and is gone without a word. */
static void leave_behind(void)
{
    pid_t child = fork();
    if (child == 0) {
        Address address;
        _exit(cu.alloc(&address, 600 * MIB));
    }
    int status;
    if (waitpid(child, &status, 0) != child || status != 0)
        end("nobody left anything behind");
}

static int step(pid_t child)
{
    int status;
    if (ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) != 0 || waitpid(child, &status, 0) != child)
        end("no step");
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
        end("the child met another answer than it should");
    return WIFSTOPPED(status);
}

/* Whether the child was killed; it has ended by itself once there are no more instructions. */
static int kill_after(const char *what, long steps)
{
    pid_t child = fork();
    if (child == 0)
        act(what);
    int status;
    if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
        end("the child does not let itself be traced");
    for (long i = 0; i < steps; i++)
        if (!step(child))
            return 0;
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return 1;
}

int main(int count, char **words)
{
    if (count != 3)
        return 64;
    const char *what = words[1];
    long stride = atol(words[2]), killed = 0;
    begin(&cu, "dlsym", 0);
    for (;; killed++) {
        Address whole, half = 0;
        if (strcmp(what, "sweep") == 0)
            leave_behind();
        if (strcmp(what, "refused") == 0 && cu.alloc(&half, 500 * MIB) != 0)
            end("half of the slice cannot be had");
        int was_killed = kill_after(what, 1 + killed * stride);
        if (half)
            cu.free(half);
        if (cu.alloc(&whole, WHOLE * MIB) != 0 || cu.free(whole) != 0) {
            printf("after %ld instructions something stays charged\n", 1 + killed * stride);
            return 1;
        }
        if (!was_killed)
            break;
    }
    printf("killed %ld\n", killed);
    return 0;
}
