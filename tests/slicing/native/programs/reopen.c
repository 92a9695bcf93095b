/* The driver is closed and opened again, as plug-ins do that look for it. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

typedef unsigned long long Address;

int main(void)
{
    for (int round = 0; round < 3; round++) {
        void *handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *context = NULL;
        if (!handle)
            return 70;
        int (*init)(unsigned) = (int (*)(unsigned))(uintptr_t)dlsym(handle, "cuInit");
        int (*retain)(void **, int) = (int (*)(void **, int))(uintptr_t)dlsym(handle, "cuDevicePrimaryCtxRetain");
        int (*set)(void *) = (int (*)(void *))(uintptr_t)dlsym(handle, "cuCtxSetCurrent");
        int (*alloc)(Address *, size_t) = (int (*)(Address *, size_t))(uintptr_t)dlsym(handle, "cuMemAlloc_v2");
        int (*release)(Address) = (int (*)(Address))(uintptr_t)dlsym(handle, "cuMemFree_v2");
        Address one = 0, two = 0;
        init(0), retain(&context, 0), set(context);
        int first = alloc(&one, (size_t)600 << 20), second = alloc(&two, (size_t)600 << 20);
        printf("alloc %d alloc %d free %d\n", first, second, release(one));
        printf("close %d\n", dlclose(handle));
    }
    return 0;
}
