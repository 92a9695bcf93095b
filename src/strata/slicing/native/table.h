/* Between interposition.c (how a program comes by a driver's function) and table.c (which of them are ours). */
#ifndef STRATA_QUOTA_TABLE_H
#define STRATA_QUOTA_TABLE_H

#include "quota.h"

typedef void *dlsym_function(void *handle, const char *name);

/* The dlsym behind ours; NULL where there is none. Neither allocates nor locks. */
dlsym_function *interpose_dlsym(void);

/* What stands behind our own export of a name, or NULL with dlerror set. */
void *table_behind(const char *name);

struct quota_wrap *table_find(const char *name);
/* The wrapper that stands in a driver function's place, or the function itself. */
void *table_swap(void *function);
/* The same by the name that cuGetProcAddress takes, for drivers whose functions have other addresses there. */
void *table_swap_named(void *function, const char *base, int version, bool is_per_thread);
/* Look up every function of a library that is loaded by now. */
void table_learn(enum quota_library library);

#endif
