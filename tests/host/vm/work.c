/* work NAME:RUN_US:SLEEP_US[:CPU[:CPU]]...: a thread of each name that runs so long, sleeps so long, and again.
   Sleep 0: never. With a CPU it stays there; with two it goes from one to the other each time. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
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

static void go_to(int cpu) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  CPU_SET(cpu, &cpus);
  sched_setaffinity(0, sizeof cpus, &cpus);
}

static void *work(void *said) {
  char name[64];
  long run_us = 0, sleep_us = 0;
  int cpu[2];
  int count = sscanf(said, "%63[^:]:%ld:%ld:%d:%d", name, &run_us, &sleep_us, &cpu[0], &cpu[1]) - 3;
  prctl(PR_SET_NAME, name);
  if (count > 0) go_to(cpu[0]);
  for (int turn = 0;; turn ^= 1) {
    if (count == 2) go_to(cpu[turn]);
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
