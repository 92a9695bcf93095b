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
/* The driver's own function; NULL where its library is not loaded yet, or lacks it. */
void *table_raw(struct quota_wrap *wrap);
/* The wrapper that stands in the place of a driver's function, which cuGetProcAddress gave for a name, or the function
 * itself: by its address among those whose names begin so, else, for drivers that give out other addresses, by name. */
void *table_swap(void *function, const char *base, int version, bool is_per_thread);

#endif
