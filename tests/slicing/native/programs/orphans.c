/* orphans DOOR SEED STEPS WORKERS: processes take and give back memory at random, fork children that keep what they
 * inherited (some close it, some execute another image, some take memory themselves), and are killed at random, until
 * they have made so many steps together. Prints the steps, the kills, how often a request was refused, and what the
 * device still holds at the end. */
#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define UNIT (8ul << 20)
#define MOST 12

static struct Driver cu;
static struct {
    _Atomic long steps, refused, wanted;
} *shared;

static unsigned next(unsigned long *random)
{
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(*random >> 33);
}

static void work(unsigned long random, long most_steps);

/* Files that take the kernel a while to close, between the device's and what the library keeps: so others look at a
 * process that is gone while it is still letting go. */
static void open_slow_files(void)
{
    for (int i = 0; i < 16; i++) {
        int file = open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        if (file < 0 || fallocate(file, 0, 0, 1 << 20) != 0)
            return;
    }
}

/* What children of a program do with what they have inherited. */
static void be_child(unsigned long random)
{
    open_slow_files();
    switch (next(&random) % 4) {
    case 0:
        ((void (*)(void))(uintptr_t)dlsym(library(), "fake_close"))();
        usleep(next(&random) % 3000);
        break;
    case 1:
        execl("/bin/true", "true", NULL);
        break;
    case 2:
        work(random, next(&random) % 200);
        break;
    default:
        usleep(next(&random) % 8000);
    }
    _exit(0);
}

static void work(unsigned long random, long most_steps)
{
    Address got[MOST];
    int count = 0;
    for (long step = 0; step < most_steps && shared->steps < shared->wanted; step++) {
        unsigned choice = next(&random) % 1024;
        shared->steps++;
        if (choice == 0 && fork() == 0)
            be_child(random * 31);
        else if (choice < 512 && count) {
            unsigned which = next(&random) % (unsigned)count;
            if (cu.free(got[which]) != 0)
                abort();
            got[which] = got[--count];
        } else if (count < MOST) {
            int result = cu.alloc(&got[count], (1 + next(&random) % 16) * UNIT);
            if (result == 0)
                count++;
            else if (result == 2)
                shared->refused++;
            else
                abort();
        }
    }
}

static pid_t start(const char *door, unsigned long random)
{
    pid_t pid = fork();
    if (pid == 0) {
        begin(&cu, door, 0);
        work(random, 1l << 60);
        _exit(0);
    }
    return pid;
}

int main(int argc, char **argv)
{
    unsigned long random = strtoul(argv[2], NULL, 10) * 2654435761u + 1;
    int workers = atoi(argv[4]);
    long kills = 0;
    pid_t pids[64];
    (void)argc;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared->wanted = atol(argv[3]);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (int i = 0; i < workers; i++)
        pids[i] = start(argv[1], next(&random));
    while (shared->steps < shared->wanted) {
        usleep(next(&random) % 20000);
        int which = (int)(next(&random) % (unsigned)workers);
        kill(pids[which], SIGKILL);
        waitpid(pids[which], NULL, 0);
        kills++;
        pids[which] = start(argv[1], next(&random));
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
    }
    while (wait(NULL) > 0)
        ;
    begin(&cu, argv[1], 0);
    printf("steps %ld kills %ld refused %ld held %lld\n", shared->steps, kills, shared->refused,
           (long long)fake_held(0));
    return 0;
}
