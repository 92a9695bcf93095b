/* forks DOOR CHILDREN: threads allocate without rest while the first one forks children, which allocate too and have to
 * come to an end: whatever lock a thread held at the fork is free in the child. Prints how many children did well. */
#define _GNU_SOURCE
#include "driver.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct {
    int type, handles, location_type, location;
    void *none;
    unsigned char flags[8];
} prop = {1, 0, 1, 0, NULL, {0}};

static struct Driver cu;
static void *context;
static _Atomic int is_over;

static void *work(void *unused)
{
    cu.set_context(context);
    while (!atomic_load(&is_over)) {
        Address one = 0, two = 0, three = 0;
        if (cu.alloc(&one, 1 << 20) || cu.alloc_async(&two, 4 << 20, NULL) || cu.create(&three, 2 << 20, &prop, 0) ||
            cu.release(three) || cu.free_async(two, NULL) || cu.free(one))
            abort();
    }
    return unused;
}

static int in_child(void)
{
    Address one, two, three;
    size_t left, total;
    alarm(20);
    return cu.memory_info(&left, &total) || total != (size_t)1 << 30 || cu.alloc(&one, 2 << 20) ||
           cu.alloc_async(&two, 1 << 20, NULL) || cu.create(&three, 2 << 20, &prop, 0) || cu.release(three) ||
           cu.free_async(two, NULL) || cu.free(one);
}

int main(int argc, char **argv)
{
    pthread_t threads[3];
    int good = 0;
    (void)argc;
    begin(&cu, argv[1], 0);
    cu.retain_context(&context, 0);
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, work, NULL);
    for (int i = 0; i < atoi(argv[2]); i++) {
        int status = 1;
        pid_t child = fork();
        if (child == 0)
            _exit(in_child());
        if (waitpid(child, &status, 0) == child && status == 0)
            good++;
    }
    atomic_store(&is_over, 1);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    printf("%d\n", good);
    return 0;
}
