/* Start and end, handles, faults. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#ifndef SIM_VERSION
#define SIM_VERSION "550.163.01" /* the driver branch that ships this library */
#endif
#ifndef SIM_CUDA
#define SIM_CUDA 12040
#endif
#define KERNEL_FILE "/proc/driver/nvidia/version"

static int users;
static gpu_t handles[MAX_GPUS];

nvmlDevice_t sim_handle(int gpu)
{
    handles[gpu].index = gpu;
    return &handles[gpu];
}

static const struct { ret_t code; const char *name, *text; } errors[] = {
    {OK, "SUCCESS", "Success"},
    {UNINITIALIZED, "UNINITIALIZED", "Uninitialized"},
    {INVALID_ARGUMENT, "INVALID_ARGUMENT", "Invalid Argument"},
    {NOT_SUPPORTED, "NOT_SUPPORTED", "Not Supported"},
    {NO_PERMISSION, "NO_PERMISSION", "Insufficient Permissions"},
    {NOT_FOUND, "NOT_FOUND", "Not Found"},
    {INSUFFICIENT_SIZE, "INSUFFICIENT_SIZE", "Insufficient Size"},
    {DRIVER_NOT_LOADED, "DRIVER_NOT_LOADED", "Driver Not Loaded"},
    {TIMEOUT, "TIMEOUT", "Timeout"},
    {FUNCTION_NOT_FOUND, "FUNCTION_NOT_FOUND", "Function Not Found"},
    {GPU_IS_LOST, "GPU_IS_LOST", "GPU is lost"},
    {RESET_REQUIRED, "RESET_REQUIRED", "GPU requires reset"},
    {LIB_RM_VERSION_MISMATCH, "LIB_RM_VERSION_MISMATCH", "Driver/library version mismatch"},
    {IN_USE, "IN_USE", "In use by another client"},
    {UNKNOWN, "UNKNOWN", "Unknown Error"},
};
#define ERRORS (sizeof errors / sizeof *errors)

API const char *nvmlErrorString(ret_t r)
{
    for (size_t i = 0; i < ERRORS; i++) if (errors[i].code == r) return errors[i].text;
    return "Unknown Error";
}

/* fault.<call> of a GPU or of the whole library: "hang", "hang SECONDS" or an error's name */
static ret_t fault(const char *value)
{
    if (!value) return OK;
    if (!strncmp(value, "hang", 4)) {
        int seconds = atoi(value + 4);
        if (seconds) sleep((uint)seconds); else for (;;) pause();
        return OK;
    }
    for (size_t i = 0; i < ERRORS; i++) if (!strcmp(errors[i].name, value)) return errors[i].code;
    return UNKNOWN;
}

ret_t sim_call(const char *name)
{
    if (getenv("VOLTFLEET_SIM_TRACE")) fprintf(stderr, "nvml: %s\n", name);
    if (!__atomic_load_n(&users, __ATOMIC_SEQ_CST)) return UNINITIALIZED;
    state_refresh();
    return fault(state_text("fault.%s", name));
}

ret_t sim_device(const char *name, nvmlDevice_t device, int *gpu)
{
    ret_t r = sim_call(name);
    if (r != OK) return r;
    if (device < handles || device >= handles + MAX_GPUS) return INVALID_ARGUMENT;
    *gpu = (int)(device - handles);
    if (*gpu >= state_number(0, "gpu.count")) return INVALID_ARGUMENT;
    if (state_number(0, "gpu%d.lost", *gpu)) return GPU_IS_LOST;
    return fault(state_text("gpu%d.fault.%s", *gpu, name));
}

ret_t sim_read(const char *name, nvmlDevice_t device, uint *value, const char *key)
{
    int g;
    ull number;
    ret_t r = sim_device(name, device, &g);
    if (r != OK) return r;
    NEEDS(value);
    r = state_get(&number, "gpu%d.%s", g, key);
    if (r == OK) *value = (uint)number;
    return r;
}

/* Version of the loaded kernel driver: the state's, or what the (simulated) kernel says. */
static int loaded(char *to, size_t size)
{
    char line[256] = "";
    if (state_text("driver.version")) {
        snprintf(to, size, "%s", state_text("driver.version"));
        return 1;
    }
    FILE *f = fopen(KERNEL_FILE, "re");
    if (!f) return 0;
    char *p = fgets(line, sizeof line, f) ? strstr(line, "Kernel Module") : NULL;
    fclose(f);
    if (!p) return 0;
    p += strlen("Kernel Module");
    p += strspn(p, " ");
    snprintf(to, size, "%.*s", (int)strcspn(p, " \n"), p);
    return 1;
}

API ret_t nvmlInitWithFlags(uint flags)
{
    char version[64];
    (void)flags;
    state_refresh();
    ret_t r = fault(state_text("fault.nvmlInit"));
    if (r != OK) return r;
    if (!loaded(version, sizeof version)) return DRIVER_NOT_LOADED;
    const char *library = state_text("library.version");
    if (strcmp(version, library ? library : SIM_VERSION)) return LIB_RM_VERSION_MISMATCH;
    __atomic_add_fetch(&users, 1, __ATOMIC_SEQ_CST);
    return OK;
}
API ret_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API ret_t nvmlInit(void) { return nvmlInitWithFlags(0); }

API ret_t nvmlShutdown(void)
{
    if (!__atomic_load_n(&users, __ATOMIC_SEQ_CST)) return UNINITIALIZED;
    __atomic_sub_fetch(&users, 1, __ATOMIC_SEQ_CST);
    return OK;
}

static ret_t give(char *to, uint size, const char *text)
{
    NEEDS(to);
    if (strlen(text) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(to, text);
    return OK;
}

API ret_t nvmlSystemGetDriverVersion(char *to, uint size)
{
    char version[64];
    CALL();
    return loaded(version, sizeof version) ? give(to, size, version) : DRIVER_NOT_LOADED;
}

API ret_t nvmlSystemGetNVMLVersion(char *to, uint size)
{
    char version[80];
    const char *library = state_text("library.version");
    snprintf(version, sizeof version, "%d.%s", SIM_CUDA / 1000, library ? library : SIM_VERSION);
    return give(to, size, version);
}

API ret_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    NEEDS(version);
    state_refresh();
    *version = (int)state_number(SIM_CUDA, "cuda.version");
    return OK;
}
API ret_t nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

API ret_t nvmlSystemGetProcessName(uint pid, char *to, uint size)
{
    char file[64], name[1024] = "";
    CALL();
    snprintf(file, sizeof file, "/proc/%u/cmdline", pid);
    FILE *f = fopen(file, "re");
    if (!f) return NOT_FOUND;
    size_t length = fread(name, 1, sizeof name - 1, f);
    fclose(f);
    name[length] = 0;
    NEEDS(to && size);
    snprintf(to, size, "%s", name);
    return OK;
}

API ret_t nvmlDeviceGetCount_v2(uint *n)
{
    CALL();
    NEEDS(n);
    *n = (uint)state_number(0, "gpu.count");
    return OK;
}
API ret_t nvmlDeviceGetCount(uint *n) { return nvmlDeviceGetCount_v2(n); }

API ret_t nvmlDeviceGetHandleByIndex_v2(uint index, nvmlDevice_t *device)
{
    int gpu;
    CALL();
    NEEDS(device && index < MAX_GPUS);
    ret_t r = sim_device(__func__, sim_handle((int)index), &gpu);
    if (r == OK) *device = sim_handle((int)index);
    return r;
}
API ret_t nvmlDeviceGetHandleByIndex(uint index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

static ret_t by_text(const char *key, const char *wanted, nvmlDevice_t *device)
{
    NEEDS(wanted && device);
    for (int g = 0; g < state_number(0, "gpu.count"); g++) {
        const char *text = state_text("gpu%d.%s", g, key);
        if (text && !strcasecmp(text, wanted)) return nvmlDeviceGetHandleByIndex_v2((uint)g, device);
    }
    return NOT_FOUND;
}
API ret_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    CALL();
    return by_text("uuid", uuid, device);
}
API ret_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    CALL();
    return by_text("serial", serial, device);
}

API ret_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus, nvmlDevice_t *device)
{
    CALL();
    NEEDS(bus && device);
    int gpu = sim_find_bus(bus);
    return gpu < 0 ? NOT_FOUND : nvmlDeviceGetHandleByIndex_v2((uint)gpu, device);
}
API ret_t nvmlDeviceGetHandleByPciBusId(const char *bus, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByPciBusId_v2(bus, device);
}

API ret_t nvmlDeviceGetIndex(nvmlDevice_t device, uint *value)
{
    DEVICE(g);
    NEEDS(value);
    *value = (uint)g;
    return OK;
}
API ret_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, uint *value)
{
    return nvmlDeviceGetIndex(device, value);
}
API ret_t nvmlDeviceGetBoardId(nvmlDevice_t device, uint *value)
{
    uint d, s;
    DEVICE(g);
    NEEDS(value);
    *value = sim_bus(g, &d, &s) << 8;
    return OK;
}
API ret_t nvmlDeviceGetMultiGpuBoard(nvmlDevice_t device, uint *value)
{
    DEVICE(g);
    NEEDS(value);
    *value = 0;
    (void)g;
    return OK;
}

API ret_t nvmlGetExcludedDeviceCount(uint *n) { CALL(); NEEDS(n); *n = 0; return OK; }
API ret_t nvmlUnitGetCount(uint *n) { CALL(); NEEDS(n); *n = 0; return OK; }
