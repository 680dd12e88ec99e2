/* A CUDA driver for tests of the probe: it answers what it was compiled to answer, and has no device behind it. */
#include <stddef.h>
#include <string.h>

#ifndef API
#define API 12040
#endif
#ifndef INIT
#define INIT 0
#endif
#ifndef COUNT
#define COUNT 1
#endif
#ifndef MAJOR
#define MAJOR 8
#endif
#ifndef MINOR
#define MINOR 9
#endif

#ifndef MEMORY_MB
#define MEMORY_MB 24576
#endif

static int initialised = 0;

int cuDriverGetVersion(int *version) { *version = API; return 0; }

int cuInit(unsigned flags) { initialised = INIT == 0; return flags ? 1 : INIT; }

/* CUDA_ERROR_NOT_INITIALIZED, as the real one answers a caller that forgot cuInit. */
#define NEEDS_INIT if (!initialised) return 3

int cuDeviceGetCount(int *count) { NEEDS_INIT; *count = COUNT; return 0; }

int cuDeviceGet(int *device, int place) { NEEDS_INIT; *device = 40 + place; return place < COUNT ? 0 : 101; }

int cuDeviceGetName(char *name, int size, int device) {
    NEEDS_INIT;
    strncpy(name, device == 40 ? "Fake GPU 0" : "Fake GPU 1", (size_t)size);
    return 0;
}

#ifndef NO_MEMORY_CALL
int cuDeviceTotalMem_v2(size_t *bytes, int device) { NEEDS_INIT; *bytes = (size_t)MEMORY_MB << 20; return device < 40; }
#endif

/* The second device is one minor version better than the first. */
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    NEEDS_INIT;
    if (device < 40) return 101;
    if (attribute == 75) *value = MAJOR;
    else if (attribute == 76) *value = MINOR + (device - 40);
    else return 1;
    return 0;
}
