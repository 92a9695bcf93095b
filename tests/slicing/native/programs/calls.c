/* calls DOOR WORD...: does to the driver what the words say, and prints each word with what the driver returned.
 *
 * What is allocated is numbered from 0, in one row for all kinds. A word is name[:argument[:argument]]. */
#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct Location {
    int type, id;
};
struct Prop {
    int type, handles;
    struct Location location;
    void *none;
    unsigned char flags[8];
};
struct PoolProps {
    int type, handles;
    struct Location location;
    void *none;
    size_t most;
    unsigned char rest[56];
};
struct Shape {
    size_t width, height;
    int format;
    unsigned channels;
};
struct Shape3 {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};
struct AllocNode {
    struct PoolProps pool;
    const void *access;
    size_t num_access, bytes;
    Address address;
};
struct NodeParams {
    int type, reserved0[3];
    union {
        long long room[29];
        struct AllocNode alloc;
    };
    long long reserved2;
};

static struct Driver cu;
static const char *door;
static int device;
static Address got[4096];
static size_t sizes[4096];
static int num_got;
static void *pool, *graph, *exec_graph;
static struct Ipc handle;

/* By address: what was made is not known before the call that makes it. */
static int keep(int result, const Address *what, size_t bytes)
{
    if (result == 0) {
        sizes[num_got] = bytes;
        got[num_got++] = *what;
    }
    return result;
}

static int use_device(int index)
{
    void *context = NULL;
    device = index;
    int result = cu.retain_context(&context, index);
    return result ? result : cu.set_context(context);
}

static int create(size_t bytes, int type, int where)
{
    Address made = 0;
    struct Prop prop = {1, 0, {type, where}, NULL, {0}};
    return keep(cu.create(&made, bytes, &prop, 0), &made, bytes);
}

static int map(int which)
{
    Address at = 0;
    cu.address_reserve(&at, sizes[which], 0, 0, 0);
    return keep(cu.map(at, sizes[which], 0, got[which], 0), &at, sizes[which]);
}

static int array(char kind, size_t side, unsigned flags)
{
    void *made = NULL;
    struct Shape flat = {side, side, 0x20, 1};
    struct Shape3 deep = {side, side, kind == '3' ? 4 : 0, 0x20, 1, flags};
    int result = kind == '2'   ? cu.array(&made, &flat)
                 : kind == '3' ? cu.array3(&made, &deep)
                               : cu.mipmap(&made, &deep, 4);
    Address what = (Address)(uintptr_t)made;
    return keep(result, &what, 0);
}

static int add_node(size_t bytes, int is_generic)
{
    void *node = NULL;
    struct AllocNode alloc = {.pool = {.type = 1, .location = {1, device}}, .bytes = bytes};
    if (!graph && cu.graph_create(&graph, 0))
        return -1;
    if (!is_generic)
        return keep(cu.graph_alloc(&node, graph, NULL, 0, &alloc), &alloc.address, bytes);
    struct NodeParams params = {.type = 10, .alloc = alloc};
    return keep(cu.graph_node(&node, graph, NULL, NULL, 0, &params), &params.alloc.address, bytes);
}

static int make_pool(int type, int place)
{
    struct PoolProps props = {.type = type, .location = {place, device}};
    return cu.pool_create(&pool, &props);
}

static void *stay(void *unused)
{
    printf("leave 0\n");
    pause();
    return unused;
}

static int call(const char *name, const char *first, const char *second)
{
    Address made = 0;
    size_t pitch = 0, left = 0, total = 0;
    size_t bytes = (size_t)amount(first);
    int which = atoi(first);
    void *context = NULL, *node = NULL;
    if (!strcmp(name, "device"))
        return use_device(which);
    if (!strcmp(name, "alloc"))
        return keep(cu.alloc(&made, bytes), &made, bytes);
    if (!strcmp(name, "pitch"))
        return keep(cu.alloc_pitch(&made, &pitch, bytes, (size_t)amount(second), 4), &made, bytes);
    if (!strcmp(name, "managed"))
        return keep(cu.alloc_managed(&made, bytes, 1), &made, bytes);
    if (!strcmp(name, "host"))
        return cu.alloc_host(&node, bytes, 0);
    if (!strcmp(name, "async"))
        return keep(cu.alloc_async(&made, bytes, NULL), &made, bytes);
    if (!strcmp(name, "newpool"))
        return make_pool(1, 1);
    if (!strcmp(name, "managedpool")) /* 2: managed, 0: of no place */
        return make_pool(2, 0);
    if (!strcmp(name, "hostpool")) /* 2: of the host */
        return cu.pool_of(&pool, (int[2]){2, 0}, 1);
    if (!strcmp(name, "numapool")) /* 3: of a node of it */
        return cu.pool_in_use(&pool, (int[2]){3, 0}, 1);
    if (!strcmp(name, "pooled"))
        return keep(cu.alloc_from_pool(&made, bytes, pool, NULL), &made, bytes);
    if (!strcmp(name, "trim"))
        return cu.pool_trim(pool, bytes);
    if (!strcmp(name, "endpool"))
        return cu.pool_destroy(pool);
    if (!strcmp(name, "keeppool")) {
        uint64_t all = UINT64_MAX;
        return cu.pool_default(&node, device) || cu.pool_set(node, 4, &all);
    }
    if (!strcmp(name, "trimdefault"))
        return cu.pool_default(&node, device) || cu.pool_trim(node, bytes);
    if (!strcmp(name, "free"))
        return cu.free(got[which]);
    if (!strcmp(name, "freeasync"))
        return cu.free_async(got[which], NULL);
    if (!strcmp(name, "takeback")) { /* by the driver, unseen */
        ((void (*)(Address))(uintptr_t)dlsym(library(), "fake_take_back"))(got[which]);
        return 0;
    }
    if (!strcmp(name, "freebad"))
        return cu.free(0xdeadbeef00);
    if (!strcmp(name, "freenull"))
        return cu.free(0);
    if (!strcmp(name, "freeasyncbad"))
        return cu.free_async(0xdeadbeef00, NULL);
    if (!strcmp(name, "sync"))
        return cu.synchronize();
    if (!strcmp(name, "create"))
        return create(bytes, 1, *second ? atoi(second) : device);
    if (!strcmp(name, "createhost"))
        return create(bytes, 3, 0);
    if (!strcmp(name, "map"))
        return map(which);
    if (!strcmp(name, "unmap"))
        return cu.unmap(got[which], sizes[which]);
    if (!strcmp(name, "release"))
        return cu.release(got[which]);
    if (!strcmp(name, "retain"))
        return keep(cu.retain(&made, (void *)(uintptr_t)got[which]), &made, sizes[which]);
    if (!strcmp(name, "shareself")) {
        uint64_t shared = 0;
        cu.export(&shared, got[which], 1, 0);
        return keep(cu.import(&made, (void *)(uintptr_t)shared, 1), &made, sizes[which]);
    }
    if (!strcmp(name, "importforeign"))
        return keep(cu.import(&made, (void *)(uintptr_t)7, 1), &made, bytes);
    if (!strcmp(name, "array2") || !strcmp(name, "array3") || !strcmp(name, "arraym"))
        return array(name[5], bytes, 0);
    if (!strcmp(name, "arraysparse"))
        return array('3', bytes, 0x40);
    if (!strcmp(name, "endarray"))
        return cu.array_destroy((void *)(uintptr_t)got[which]);
    if (!strcmp(name, "endmipmap"))
        return cu.mipmap_destroy((void *)(uintptr_t)got[which]);
    if (!strcmp(name, "graphalloc"))
        return add_node(bytes, 0);
    if (!strcmp(name, "graphnode"))
        return add_node(bytes, 1);
    if (!strcmp(name, "graphfree"))
        return cu.graph_free(&node, graph, NULL, 0, got[which]);
    if (!strcmp(name, "nextgraph")) { /* the one before stays as it is */
        graph = exec_graph = NULL;
        return 0;
    }
    if (!strcmp(name, "capture"))
        return cu.begin_capture(NULL, 0);
    if (!strcmp(name, "endcapture"))
        return cu.end_capture(NULL, &graph);
    if (!strcmp(name, "graphlaunch"))
        return (!exec_graph && cu.graph_build(&exec_graph, graph, 0)) ? -1 : cu.graph_launch(exec_graph, NULL);
    if (!strcmp(name, "graphdestroy"))
        return (exec_graph ? cu.graph_exec_destroy(exec_graph) : 0) || cu.graph_destroy(graph);
    if (!strcmp(name, "graphtrim"))
        return cu.graph_trim(device);
    if (!strcmp(name, "ipcget"))
        return cu.ipc_get(&handle, got[which]);
    if (!strcmp(name, "ipcopen"))
        return keep(cu.ipc_open(&made, handle, 1), &made, 0);
    if (!strcmp(name, "ipcclose"))
        return cu.ipc_close(got[which]);
    if (!strcmp(name, "newcontext")) {
        int result = cu.create_context(&context, 0, device);
        made = (Address)(uintptr_t)context;
        return keep(result, &made, 0);
    }
    if (!strcmp(name, "endcontext"))
        return cu.destroy_context((void *)(uintptr_t)got[which]);
    if (!strcmp(name, "releasecontext"))
        return cu.release_context(device);
    if (!strcmp(name, "reset"))
        return cu.reset_context(device);
    if (!strcmp(name, "oldrelease"))
        return cu.release_context_old(device);
    if (!strcmp(name, "oldreset"))
        return cu.reset_context_old(device);
    if (!strcmp(name, "memset"))
        return cu.set_memory(0, 0, 0);
    if (!strcmp(name, "launch")) {
        int result = 0;
        for (int i = 0; i < which && !result; i++)
            result = cu.launch(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
        return result;
    }
    if (!strcmp(name, "cooperate"))
        return cu.launch_cooperative(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL);
    if (!strcmp(name, "childwait")) { /* a child that does nothing, with all that is open here; its pid is printed */
        pid_t child = fork();
        if (child == 0)
            return pause();
        printf("%d ", (int)child);
        return 0;
    }
    if (!strcmp(name, "wait"))
        return pause();
    if (!strcmp(name, "stop"))
        return raise(SIGSTOP);
    if (!strcmp(name, "leave")) { /* the first thread ends, another one stays */
        pthread_t thread;
        pthread_create(&thread, NULL, stay, NULL);
        pthread_exit(NULL);
    }
    if (!strcmp(name, "info")) {
        int result = cu.memory_info(&left, &total);
        printf("free %zu total %zu ", left, total);
        return result;
    }
    if (!strcmp(name, "total")) {
        int result = cu.total(&total, device);
        printf("total %zu ", total);
        return result;
    }
    if (!strcmp(name, "held")) {
        printf("bytes %lld ", (long long)fake_held(which));
        return 0;
    }
    if (!strcmp(name, "calls")) {
        printf("%s %ld ", first, fake_calls_of(first));
        return 0;
    }
    fprintf(stderr, "calls: no such word: %s\n", name);
    exit(64);
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    door = argv[1];
    if (!strncmp(door, "stripped+", 9)) { /* without an environment, as sshd and su start programs */
        door += 9;
        clearenv();
    }
    reach(&cu, door);
    if (cu.init(0) != 0 || use_device(0) != 0)
        return 70;
    for (int i = 2; i < argc; i++) {
        char word[128], *first, *second;
        snprintf(word, sizeof word, "%s", argv[i]);
        first = strchr(word, ':');
        if (first)
            *first++ = '\0';
        second = first ? strchr(first, ':') : NULL;
        if (second)
            *second++ = '\0';
        if (!strcmp(word, "fork")) { /* fork:N: a child does the next N words, and is waited for */
            fflush(stdout);
            pid_t child = fork();
            int status = 0;
            if (child == 0)
                argc = i + 1 + atoi(first);
            else if (waitpid(child, &status, 0) != child || status != 0)
                return 71;
            else
                i += atoi(first);
            continue;
        }
        if (!strcmp(word, "exec")) { /* the rest of the words in a fresh image, same process */
            argv[i] = (char *)door, argv[i - 1] = argv[0];
            fflush(stdout);
            execv("/proc/self/exe", argv + i - 1);
            return 72;
        }
        int result = call(word, first ? first : "", second ? second : "");
        printf("%s %d\n", word, result);
    }
    return 0;
}
