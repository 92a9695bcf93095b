/* Between cores.c (a share of a device's time) and the calls that launch or wait. */
#ifndef STRATA_QUOTA_CORES_H
#define STRATA_QUOTA_CORES_H

#include "quota.h"

struct launch {
    struct meter *meter; /* NULL: not measured */
    bool is_long;
};

/* Around a launch; is_long: it may take long, as a graph does. cores_end returns `result`. */
void cores_begin(struct launch *launch, bool is_long, void *stream);
int cores_end(const struct launch *launch, int result);
/* What was launched is about to be waited for, by a call or by asking again and again. */
void cores_cover(void);
/* Around a call that waits. */
void cores_begin_sync(void);
void cores_end_sync(void);
/* Under capture of another stream some calls would end that capture: not between these. */
int cores_relaxed(void);
void cores_strict(int mode);

#endif
