/* together DOOR ROUNDS: a process that holds memory and a child it has forked are killed at one time, again and again,
 * while another asks for the memory. The child has files that take the kernel long to close, before it comes to the
 * device's; both have many between that and what the library keeps. So one may close the last copy of the one, and the
 * other the last of the other. Prints how often the other got it. */
#define _GNU_SOURCE
#include "driver.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define HELD (768ul << 20)
#define BETWEEN 900
#define SLOW 24

static struct Driver cu;

static void open_slow_files(void)
{
    for (int i = 0; i < SLOW; i++) {
        int file = open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        if (file < 0 || fallocate(file, 0, 0, 4 << 20) != 0)
            abort();
    }
}

static void hold(const char *door, int ready)
{
    Address address;
    begin(&cu, door, 0);
    while (cu.alloc(&address, HELD) != 0)
        usleep(200);
    for (int i = 0; i < BETWEEN; i++)
        if (dup(ready) < 0)
            break;
    setpgid(0, 0);
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, 0);
        open_slow_files();
        if (write(ready, "c", 1) != 1)
            abort();
        for (;;)
            pause();
    }
    for (;;)
        pause();
}

int main(int argc, char **argv)
{
    int got = 0, rounds = atoi(argv[2]);
    unsigned long random = 1;
    (void)argc;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (int round = 0; round < rounds; round++) {
        int ready[2];
        char byte;
        if (pipe(ready) != 0)
            abort();
        pid_t holder = fork();
        if (holder == 0)
            hold(argv[1], ready[1]);
        close(ready[1]);
        if (read(ready[0], &byte, 1) != 1)
            abort();
        pid_t asking = fork();
        if (asking == 0) {
            Address address;
            begin(&cu, argv[1], 0);
            while (cu.alloc(&address, HELD) != 0)
                ;
            _exit(0);
        }
        random = random * 6364136223846793005u + 1442695040888963407u;
        nanosleep(&(struct timespec){0, 2000000 + (long)(random >> 44)}, NULL);
        kill(-holder, SIGKILL);
        int status;
        if (waitpid(asking, &status, 0) == asking && WIFEXITED(status) && WEXITSTATUS(status) == 0)
            got++;
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
        close(ready[0]);
    }
    while (wait(NULL) > 0)
        ;
    printf("got %d\n", got);
    return 0;
}
