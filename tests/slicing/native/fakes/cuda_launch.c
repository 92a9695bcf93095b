#include "cuda.h"

#include <stdlib.h>

EXPORT CUresult cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                               unsigned shared, CUstream stream, void **params, void **extra)
{
    (void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz;
    (void)shared, (void)stream, (void)params, (void)extra;
    ENTER(visit);
    launch(current());
    return OK;
}

EXPORT CUresult cuLaunchKernel_ptsz(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                    unsigned bz, unsigned shared, CUstream stream, void **params, void **extra)
{
    (void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz;
    (void)shared, (void)stream, (void)params, (void)extra;
    ENTER(visit);
    launch(current());
    return OK;
}

EXPORT CUresult cuLaunchKernelEx(const void *config, void *f, void **params, void **extra)
{
    (void)config, (void)f, (void)params, (void)extra;
    ENTER(visit);
    launch(current());
    return OK;
}

EXPORT CUresult cuLaunchKernelEx_ptsz(const void *config, void *f, void **params, void **extra)
{
    (void)config, (void)f, (void)params, (void)extra;
    ENTER(visit);
    launch(current());
    return OK;
}

EXPORT CUresult cuLaunchCooperativeKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                          unsigned bz, unsigned shared, CUstream stream, void **params)
{
    (void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz;
    (void)shared, (void)stream, (void)params;
    ENTER(visit);
    launch(current());
    return OK;
}

EXPORT CUresult cuLaunchCooperativeKernel_ptsz(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                               unsigned bz, unsigned shared, CUstream stream, void **params)
{
    (void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz;
    (void)shared, (void)stream, (void)params;
    ENTER(visit);
    launch(current());
    return OK;
}

/* Events: of each, when what was launched before it is over. */
EXPORT CUresult cuEventCreate(int64_t **event, unsigned flags)
{
    (void)flags;
    ENTER(visit);
    *event = calloc(1, sizeof **event);
    return OK;
}

EXPORT CUresult cuEventDestroy_v2(int64_t *event)
{
    ENTER(visit);
    free(event);
    return OK;
}

EXPORT CUresult cuEventRecord(int64_t *event, CUstream stream)
{
    (void)stream;
    ENTER(visit);
    *event = idle_at_us(current());
    return OK;
}

EXPORT CUresult cuEventRecord_ptsz(int64_t *event, CUstream stream)
{
    (void)stream;
    ENTER(visit);
    *event = idle_at_us(current());
    return OK;
}

EXPORT CUresult cuEventQuery(int64_t *event)
{
    ENTER(visit);
    return *event <= now_us() ? OK : NOT_READY;
}

EXPORT CUresult cuEventElapsedTime(float *ms, int64_t *begin, int64_t *end)
{
    ENTER(visit);
    *ms = (float)(*end - *begin) / 1000;
    return OK;
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
    static __thread int known;
    ENTER(visit);
    int before = known;
    known = *mode;
    *mode = before;
    return OK;
}
