/* A dlsym of the program's own, before the quota library's: it looks at every question and passes it on. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

static _Thread_local int asked;

void *dlsym(void *restrict handle, const char *restrict name)
{
    typedef void *(*Dlsym)(void *, const char *);
    static Dlsym under;
    if (!under) {
        union {
            void *object;
            Dlsym function;
        } found = {dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5")};
        if (!found.object)
            found.object = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.17");
        under = found.function;
    }
    asked++;
    return under(handle, name);
}
