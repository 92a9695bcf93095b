/* The clock, apart from what decides by it: the bench plays the same decisions in virtual time. */
#include "quota.h"

#include <time.h>

uint64_t quota_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void quota_sleep_ns(uint64_t span_ns) {
    nanosleep(&(struct timespec){(time_t)(span_ns / 1000000000u), (long)(span_ns % 1000000000u)}, NULL);
}
