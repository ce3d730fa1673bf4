/* A stand-in for the driver's libnvidia-ml.so.1: NVML's functions with NVML's signatures, structures and codes, as nvidia-ml-py calls them.
   What they answer stands in the file $NVML_STUB, read at every call: lines "key value", e.g. "0.utilization 37", "0.power.error 3". */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int nvmlReturn_t;
typedef struct { char name[16]; unsigned instance; int slice; } Device;
typedef Device *nvmlDevice_t;
typedef struct { unsigned long long last; Device *device; } Events;
typedef struct { unsigned long long busy; } Sample;
typedef struct { unsigned gpu, memory; } Rates;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { nvmlDevice_t device; unsigned long long kind, data; unsigned gpu_instance, compute_instance; } Event;
typedef struct { unsigned version, supported; } Support;
typedef struct { unsigned field, scope; long long timestamp, latency; int type; nvmlReturn_t code; unsigned long long value; } Field;
typedef struct { unsigned id; nvmlReturn_t code; double value; struct { char *short_name, *long_name, *unit; } info; } Metric;
typedef struct { unsigned version, count; Sample *first, *second; Metric metrics[]; } Asked;

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TIMEOUT = 10 };

static Device whole[8], slices[8];

static int lookup(const char *key, char *value, size_t size) {
    char line[256];
    int found = 0;
    FILE *file = fopen(getenv("NVML_STUB"), "r");
    size_t length = strlen(key);
    if (!file) return 0;
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, key, length) && line[length] == ' ') {
            line[strcspn(line, "\n")] = 0;
            snprintf(value, size, "%s", line + length + 1);
            found = 1;
        }
    fclose(file);
    return found;
}

static unsigned long long number(const char *key, unsigned long long otherwise) {
    char value[128];
    return lookup(key, value, sizeof value) ? strtoull(value, NULL, 10) : otherwise;
}

/* The value of DEVICE.WHAT, or the error of DEVICE.error, DEVICE.WHAT.error; NOT_SUPPORTED when neither stands in the file. */
static nvmlReturn_t ask(nvmlDevice_t device, const char *what, unsigned long long *answer) {
    char key[96], value[128];
    unsigned long long hang = number("hang", 0);
    if (hang) sleep(hang);
    snprintf(key, sizeof key, "%s.error", device->name);
    if (number(key, 0)) return (nvmlReturn_t)number(key, 0);
    snprintf(key, sizeof key, "%s.%s.error", device->name, what);
    if (number(key, 0)) return (nvmlReturn_t)number(key, 0);
    snprintf(key, sizeof key, "%s.%s", device->name, what);
    if (!lookup(key, value, sizeof value)) return NOT_SUPPORTED;
    *answer = strtoull(value, NULL, 10);
    return SUCCESS;
}

static nvmlReturn_t ask_unsigned(nvmlDevice_t device, const char *what, unsigned *answer) {
    unsigned long long wide = 0;
    nvmlReturn_t code = ask(device, what, &wide);
    *answer = (unsigned)wide;
    return code;
}

nvmlReturn_t nvmlInitWithFlags(unsigned flags) { (void)flags; return (nvmlReturn_t)number("init.error", 0); }
nvmlReturn_t nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(nvmlReturn_t code) { return code == 15 ? "GPU is lost" : code == 9 ? "Driver Not Loaded" : "an error"; }

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) { *count = (unsigned)number("count", 0); return SUCCESS; }

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    if (index >= number("count", 0)) return INVALID_ARGUMENT;
    snprintf(whole[index].name, sizeof whole[index].name, "%u", index);
    whole[index].instance = index;
    *device = &whole[index];
    return SUCCESS;
}

static nvmlReturn_t slice(unsigned index, nvmlDevice_t *device) {
    snprintf(slices[index].name, sizeof slices[index].name, "%u.slice", index);
    slices[index].instance = index;
    slices[index].slice = 1;
    *device = &slices[index];
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t parent, unsigned index, nvmlDevice_t *device) {
    return index ? NOT_FOUND : slice(parent->instance, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    char key[96], value[128];
    for (unsigned index = 0; index < number("count", 0); index++) {
        snprintf(key, sizeof key, "%u.slice.uuid", index);
        if (lookup(key, value, sizeof value) && !strcmp(value, uuid)) return slice(index, device);
    }
    return NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t part, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByIndex_v2(part->instance, device);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t part, unsigned *id) { return ask_unsigned(part, "instance", id); }

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned size) {
    char key[96];
    snprintf(key, sizeof key, "%s.uuid", device->name);
    return lookup(key, uuid, size) ? SUCCESS : NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending) {
    *pending = 0;
    return ask_unsigned(device, "mig", current);
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, Rates *rates) {
    rates->memory = 0;
    return ask_unsigned(device, "utilization", &rates->gpu);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, Memory *memory) {
    nvmlReturn_t code = ask(device, "memory_total", &memory->total);
    if (!code) code = ask(device, "memory_used", &memory->used);
    memory->free = memory->total - memory->used;
    return code;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *milliwatts) { return ask_unsigned(device, "power", milliwatts); }

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned *celsius) {
    return sensor ? INVALID_ARGUMENT : ask_unsigned(device, "temperature", celsius);
}

#ifndef OLD_DRIVER
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons) { return ask(device, "reasons", reasons); }
#else
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons) { return ask(device, "reasons", reasons); }
#endif

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, Field *fields) {
    for (int i = 0; i < count; i++) {
        char what[32];
        if (fields[i].field == 91)
            snprintf(what, sizeof what, "links");
        else if (fields[i].scope == 0xFFFFFFFFu)
            snprintf(what, sizeof what, "field%u", fields[i].field);
        else
            snprintf(what, sizeof what, "link%u.field%u", fields[i].scope, fields[i].field);
        fields[i].type = fields[i].field == 91 ? 1 : 3; /* unsigned int, unsigned long long */
        fields[i].code = ask(device, what, &fields[i].value);
    }
    return SUCCESS;
}

nvmlReturn_t nvmlEventSetCreate(Events **events) { *events = calloc(1, sizeof(Events)); return SUCCESS; }
nvmlReturn_t nvmlEventSetFree(Events *events) { free(events); return SUCCESS; }

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long kinds, Events *events) {
    unsigned long long told = 0;
    nvmlReturn_t code = ask(device, "xids", &told);
    if (kinds != 8) return INVALID_ARGUMENT;
    events->device = device;
    events->last = told;
    return code;
}

/* "0.xids N" is how many errors there have been, "0.xid" the number of each, "0.xid_instance" the slice that had it. */
nvmlReturn_t nvmlEventSetWait_v2(Events *events, Event *event, unsigned timeout) {
    unsigned long long told = 0, xid = 0;
    nvmlReturn_t code = ask(events->device, "xids", &told);
    char key[96];
    (void)timeout;
    if (code) return code;
    if (events->last >= told) return TIMEOUT;
    events->last++;
    ask(events->device, "xid", &xid);
    snprintf(key, sizeof key, "%s.xid_instance", events->device->name);
    event->device = events->device;
    event->kind = 8;
    event->data = xid;
    event->gpu_instance = (unsigned)number(key, 0xFFFFFFFFu);
    event->compute_instance = 0xFFFFFFFFu;
    return SUCCESS;
}

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, Support *support) {
    char key[96];
    if (support->version != 1) return 25;
    snprintf(key, sizeof key, "%s.gpm", device->name);
    support->supported = (unsigned)number(key, 0);
    return SUCCESS;
}

nvmlReturn_t nvmlGpmSampleAlloc(Sample **sample) { *sample = calloc(1, sizeof(Sample)); return SUCCESS; }
nvmlReturn_t nvmlGpmSampleFree(Sample *sample) { free(sample); return SUCCESS; }
nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, Sample *sample) { return ask(device, "sm", &sample->busy); }
nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned instance, Sample *sample) {
    unsigned long long mine = 0;
    nvmlReturn_t code = ask(&slices[device->instance], "instance", &mine);
    return code || mine != instance ? INVALID_ARGUMENT : ask(&slices[device->instance], "sm", &sample->busy);
}

nvmlReturn_t nvmlGpmMetricsGet(Asked *asked) {
    if (asked->version != 1 || asked->count != 1 || asked->metrics[0].id != 2) return INVALID_ARGUMENT;
    asked->metrics[0].code = SUCCESS;
    asked->metrics[0].value = (double)asked->second->busy; /* the newer of the two */
    return SUCCESS;
}
