#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef LINKED
#define DECLARE(field, symbol, base, form) extern int symbol form;
FUNCTIONS(DECLARE) NEW_FUNCTIONS(DECLARE)
#endif

static void end(const char *why)
{
    fprintf(stderr, "program: %s\n", why);
    exit(70);
}

void *library(void)
{
    static void *handle;
    if (!handle && !(handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL)))
        end(dlerror());
    return handle;
}

typedef int (*Get)(const char *, void **, int, uint64_t);
typedef int (*Get2)(const char *, void **, int, uint64_t, int *);

static void *by_name(const char *door, const char *symbol, const char *base)
{
    if (strcmp(door, "dlsym") == 0)
        return dlsym(library(), symbol);
    if (strcmp(door, "default") == 0)
        return library() ? dlsym(RTLD_DEFAULT, symbol) : NULL;
    if (strcmp(door, "next") == 0)
        return dlsym(RTLD_NEXT, symbol);
    int version = (int)(getenv("FAKE_VERSION") ? amount(getenv("FAKE_VERSION")) : 13000);
    /* The version of the form that the table above declares, as cudart asks by the header it was compiled with. */
    if (strcmp(base, "cuCtxCreate") == 0)
        version = 11030;
    void *found = NULL;
    if (strcmp(door, "gpa1") == 0) {
        Get get = (Get)(uintptr_t)dlsym(library(), "cuGetProcAddress");
        if (get(base, &found, version, 0) != 0 && found)
            end("an error, and a function nevertheless");
        return found;
    }
    if (strncmp(door, "gpa:", 4) == 0) {
        int status = -1;
        Get2 get = (Get2)(uintptr_t)dlsym(library(), "cuGetProcAddress_v2");
        if (get(base, &found, version, strtoull(door + 4, NULL, 10), &status) != 0 || (status == 0) != (found != NULL))
            end("cuGetProcAddress_v2 says one thing and does another");
        return found;
    }
    if (strcmp(door, "gpa-of-gpa") == 0) {
        void *inner = NULL;
        int status = -1;
        Get2 get = (Get2)(uintptr_t)dlsym(library(), "cuGetProcAddress_v2");
        if (get("cuGetProcAddress", &inner, version, 0, &status) != 0 || status != 0)
            end("cuGetProcAddress does not know itself");
        ((Get2)(uintptr_t)inner)(base, &found, version, 0, &status);
        return found;
    }
    end("no such door");
    return NULL;
}

void reach(struct Driver *driver, const char *door)
{
    memset(driver, 0, sizeof *driver);
    if (strcmp(door, "link") == 0) {
#ifdef LINKED
#define TAKE(field, symbol, base, form) driver->field = symbol;
        FUNCTIONS(TAKE) NEW_FUNCTIONS(TAKE)
#undef TAKE
        return;
#else
        end("not linked");
#endif
    }
#define FIND(field, symbol, base, form) \
    *(void **)(uintptr_t)&driver->field = by_name(door, #symbol, #base);
    FUNCTIONS(FIND) NEW_FUNCTIONS(FIND)
#undef FIND
}

long fake_calls_of(const char *name)
{
    long (*calls)(const char *) = (long (*)(const char *))(uintptr_t)dlsym(library(), "fake_calls");
    return calls(name);
}

int64_t fake_held(int device)
{
    int64_t *(*state)(void) = (int64_t * (*)(void))(uintptr_t)dlsym(library(), "fake_state");
    return __atomic_load_n(&state()[device], __ATOMIC_SEQ_CST);
}

void begin(struct Driver *driver, const char *door, int device)
{
    void *context = NULL;
    reach(driver, door);
    if (driver->init(0) != 0)
        end("cuInit failed");
    if (driver->retain_context(&context, device) != 0 || driver->set_context(context) != 0)
        end("no context");
}

int64_t amount(const char *text)
{
    char *unit;
    int64_t value = strtoll(text, &unit, 0);
    return *unit == 'K' ? value << 10 : *unit == 'M' ? value << 20 : *unit == 'G' ? value << 30 : value;
}
