/* What dlsym and cuGetProcAddress answer, one line each: the same pointer for the same question, whoever asks. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef int (*Get2)(const char *, void **, int, uint64_t, int *);

static void say(const char *what, int is_so)
{
    printf("%s: %s\n", what, is_so ? "yes" : "no");
}

static void *ask_many(void *handle)
{
    void *first = dlsym(handle, "cuMemAlloc_v2");
    for (int i = 0; i < 1000; i++)
        if (dlsym(handle, "cuMemAlloc_v2") != first || dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") != first)
            return NULL;
    return first;
}

int main(void)
{
    void *handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL), *seen = NULL, *again = NULL;
    void *alloc = dlsym(handle, "cuMemAlloc_v2");
    say("repeated", alloc && dlsym(handle, "cuMemAlloc_v2") == alloc && dlsym(handle, "cuMemAlloc_v2") == alloc);
    void *next = dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    say("next, repeated", next && dlsym(RTLD_NEXT, "cuMemAlloc_v2") == next && dlsym(RTLD_NEXT, "cuMemAlloc_v2") == next);
    /* From the program, the next malloc is the C library's, as it is without any library before it. */
    void *malloc_next = dlsym(RTLD_NEXT, "malloc");
    say("next, another", malloc_next && malloc_next == dlsym(RTLD_NEXT, "malloc"));
    say("next, of nobody", dlsym(RTLD_NEXT, "no_such_function_at_all") == NULL && dlerror() != NULL);
    say("no error left", dlsym(handle, "cuMemFree_v2") != NULL && dlerror() == NULL);
    pthread_t thread;
    pthread_create(&thread, NULL, ask_many, handle);
    pthread_join(thread, &seen);
    say("in threads", seen == alloc);
    Get2 get = (Get2)(uintptr_t)dlsym(handle, "cuGetProcAddress_v2");
    int status = -1;
    say("asked by name, same", get("cuMemAlloc", &again, 12000, 0, &status) == 0 && again == alloc && status == 0);
    say("per thread is another", get("cuMemAllocAsync", &again, 12000, 2, &status) == 0 &&
                                     again == dlsym(handle, "cuMemAllocAsync_ptsz") &&
                                     get("cuMemAllocAsync", &again, 12000, 0, NULL) == 0 &&
                                     again == dlsym(handle, "cuMemAllocAsync"));
    say("unknown", get("cuNoSuchThing", &again, 12000, 0, &status) == 0 && again == NULL && status == 1);
    say("too new", get("cuMemAllocAsync", &again, 10000, 0, &status) == 0 && again == NULL && status == 2);
    say("beyond the driver", get("cuMemAlloc", &again, 999000, 0, &status) == 1);
    say("no status", get("cuMemFree", &again, 12000, 0, NULL) == 0 && again == dlsym(handle, "cuMemFree_v2"));
    say("versions", get("cuCtxCreate", &again, 11000, 0, &status) == 0 && again == dlsym(handle, "cuCtxCreate_v2") &&
                        get("cuCtxCreate", &again, 13000, 0, &status) == 0 &&
                        again == dlsym(handle, "cuCtxCreate_v4"));
    /* A name of the driver's in a library that is not the driver stays that library's. */
    void *other = dlopen("libother.so", RTLD_NOW);
    void *own = other ? dlsym(other, "cuMemAlloc_v2") : NULL;
    int (*answer)(void) = (int (*)(void))(uintptr_t)own;
    say("another library's", own && own != alloc && answer() == 4711);
    return 0;
}
