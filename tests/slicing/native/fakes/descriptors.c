/* A device whose memory comes back when the last copy of a descriptor is closed, as NVIDIA's does: a forked child
 * inherits the copies, and what its parent held stays while it has them, however the parent ended. A descriptor is a
 * locked byte behind the state's file, which the kernel unlocks with its last copy. */
#define _GNU_SOURCE
#include "fake.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

int has_descriptors;
static const char *where;
static int client = -1, descriptor = -1;

static int lock_byte(int file, int command, int byte)
{
    struct flock lock = {.l_type = F_WRLCK, .l_start = (off_t)sizeof(struct State) + byte, .l_len = 1};
    int result = fcntl(file, command, &lock);
    return command == F_OFD_GETLK ? lock.l_type != F_UNLCK : result == 0;
}

/* A child has its parent's descriptor, and opens one of its own for what it takes itself. */
static void forget(void)
{
    client = -1;
}

void descriptors_begin(const char *path)
{
    where = path;
    has_descriptors = 1;
    pthread_atfork(NULL, NULL, forget);
}

static int reopen(void)
{
    int file = open(where, O_RDWR | O_CLOEXEC);
    if (file < 0)
        abort();
    return file;
}

/* What all living descriptors hold; those of ended ones are cleared. */
static int64_t sum(int file, int device)
{
    int64_t all = 0;
    for (int i = 0; i < MAX_CLIENTS; i++) {
        int64_t held = 0;
        for (int other = 0; other < MAX_DEVICES; other++)
            held |= atomic_load(&state->clients[i][other]);
        if (!held)
            continue;
        if (i != client && !lock_byte(file, F_OFD_GETLK, i))
            for (int other = 0; other < MAX_DEVICES; other++)
                atomic_store(&state->clients[i][other], 0);
        all += atomic_load(&state->clients[i][device]);
    }
    return all;
}

static void take_client(void)
{
    descriptor = reopen();
    for (client = 0; client < MAX_CLIENTS && !lock_byte(descriptor, F_OFD_SETLK, client); client++)
        ;
    if (client == MAX_CLIENTS)
        abort();
    for (int device = 0; device < MAX_DEVICES; device++)
        atomic_store(&state->clients[client][device], 0);
}

/* One word is the whole of it: whoever is killed at any instruction leaves it as it was, or changed. */
int descriptors_hold(int device, int64_t bytes)
{
    int gate = reopen();
    if (!lock_byte(gate, F_OFD_SETLKW, MAX_CLIENTS))
        abort();
    if (client < 0)
        take_client();
    int64_t held = sum(gate, device) + bytes;
    int fits = bytes <= 0 || held <= device_bytes();
    if (fits) {
        atomic_fetch_add(&state->clients[client][device], bytes);
        atomic_store(&state->held[device], held);
        if (atomic_load(&state->peak[device]) < held)
            atomic_store(&state->peak[device], held);
    } else {
        atomic_fetch_add(&state->refused, 1);
    }
    close(gate);
    return fits;
}

/* For test programs: let go of the device, as a child does that closes what it inherited. */
EXPORT void fake_close(void);
void fake_close(void)
{
    if (descriptor >= 0)
        close(descriptor);
    descriptor = -1;
}
