/* work NAME:RUN_US:SLEEP_US...: a thread of each name that runs so long, sleeps so long, and again. Sleep 0: never. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static long cpu_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * 1000000L + now.tv_nsec / 1000;
}

static void *work(void *said) {
  char name[64];
  long run_us = 0, sleep_us = 0;
  sscanf(said, "%63[^:]:%ld:%ld", name, &run_us, &sleep_us);
  prctl(PR_SET_NAME, name);
  for (;;) {
    for (long end = cpu_us() + run_us; cpu_us() < end;)
      for (volatile int i = 0; i < 5000; i++) {
      }
    if (sleep_us) usleep(sleep_us);
  }
  return NULL;
}

int main(int count, char **said) {
  pthread_t thread;
  if (count < 2) return 2;
  for (int i = 2; i < count; i++) pthread_create(&thread, NULL, work, said[i]);
  work(said[1]);
}
