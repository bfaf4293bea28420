/* Readings of one GPU: identity, memory, heat, power, clocks, PCIe, errors. */
#include "sim.h"

#include <stdio.h>
#include <string.h>

READS_TEXT(nvmlDeviceGetName, "name")
READS_TEXT(nvmlDeviceGetUUID, "uuid")
READS_TEXT(nvmlDeviceGetSerial, "serial")
READS_TEXT(nvmlDeviceGetVbiosVersion, "vbios")
READS_TEXT(nvmlDeviceGetBoardPartNumber, "part")
READS_TEXT(nvmlDeviceGetInforomImageVersion, "inforom.image")
READS(nvmlDeviceGetBrand, "brand")
READS(nvmlDeviceGetArchitecture, "architecture")
READS(nvmlDeviceGetNumGpuCores, "cores")
READS(nvmlDeviceGetMemoryBusWidth, "memory.bus_width")
READS(nvmlDeviceGetModuleId, "module")
READS(nvmlDeviceGetIrqNum, "irq")
READS(nvmlDeviceGetNumaNodeId, "numa_memory") /* of GPUs whose memory is a NUMA node: not Volta */
READS(nvmlDeviceGetDisplayMode, "display.mode")
READS(nvmlDeviceGetDisplayActive, "display.active")
READS(nvmlDeviceGetPersistenceMode, "persistence")
READS(nvmlDeviceGetComputeMode, "compute_mode")
READS(nvmlDeviceGetPerformanceState, "pstate")
READS(nvmlDeviceGetPowerState, "pstate")
READS(nvmlDeviceGetVirtualizationMode, "virtualization")
READS(nvmlDeviceGetAccountingMode, "accounting")
READS(nvmlDeviceGetAccountingBufferSize, "accounting.buffer")
READS(nvmlDeviceGetDefaultEccMode, "ecc.default")
READS(nvmlDeviceGetRetiredPagesPendingStatus, "retired.pending")
READS(nvmlDeviceGetPowerManagementMode, "power.management")
READS(nvmlDeviceGetPowerManagementLimit, "power.limit")
READS(nvmlDeviceGetEnforcedPowerLimit, "power.limit")
READS(nvmlDeviceGetPowerManagementDefaultLimit, "power.default")
READS(nvmlDeviceGetPowerUsage, "power.usage")
READS(nvmlDeviceGetPowerSource, "power.source")
READS(nvmlDeviceGetMaxPcieLinkGeneration, "pcie.gen.max")
READS(nvmlDeviceGetGpuMaxPcieLinkGeneration, "pcie.gen.device")
READS(nvmlDeviceGetMaxPcieLinkWidth, "pcie.width.max")
READS(nvmlDeviceGetCurrPcieLinkGeneration, "pcie.gen.current")
READS(nvmlDeviceGetCurrPcieLinkWidth, "pcie.width.current")
READS(nvmlDeviceGetPcieReplayCounter, "pcie.replays")
READS(nvmlDeviceGetPcieSpeed, "pcie.speed")

static ret_t two(const char *name, nvmlDevice_t device, uint *a, uint *b, const char *ka, const char *kb)
{
    NEEDS(a && b);
    ret_t r = sim_read(name, device, a, ka);
    return r != OK ? r : sim_read(name, device, b, kb);
}

API ret_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t d, int *major, int *minor)
{
    return two(__func__, d, (uint *)major, (uint *)minor, "cc.major", "cc.minor");
}
API ret_t nvmlDeviceGetEccMode(nvmlDevice_t d, uint *current, uint *pending)
{
    return two(__func__, d, current, pending, "ecc.current", "ecc.pending");
}
API ret_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t d, uint *low, uint *high)
{
    return two(__func__, d, low, high, "power.min", "power.max");
}
API ret_t nvmlDeviceGetUtilizationRates(nvmlDevice_t d, uint both[2])
{
    return two(__func__, d, both, both + 1, "utilization.gpu", "utilization.memory");
}
API ret_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t d, uint *value, uint *period)
{
    return two(__func__, d, value, period, "utilization.encoder", "utilization.period");
}
API ret_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t d, uint *value, uint *period)
{
    return two(__func__, d, value, period, "utilization.decoder", "utilization.period");
}

static ret_t wide(const char *name, nvmlDevice_t device, ull *value, const char *key)
{
    int g;
    ret_t r = sim_device(name, device, &g);
    if (r != OK) return r;
    NEEDS(value);
    return state_get(value, "gpu%d.%s", g, key);
}
API ret_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t d, ull *v)
{
    return wide(__func__, d, v, "power.energy");
}
API ret_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t d, ull *v)
{
    return wide(__func__, d, v, "clocks.reasons");
}
API ret_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t d, ull *v)
{
    return wide(__func__, d, v, "clocks.reasons");
}
API ret_t nvmlDeviceGetSupportedClocksEventReasons(nvmlDevice_t d, ull *v)
{
    return wide(__func__, d, v, "clocks.reasons.supported");
}
API ret_t nvmlDeviceGetSupportedClocksThrottleReasons(nvmlDevice_t d, ull *v)
{
    return wide(__func__, d, v, "clocks.reasons.supported");
}

/* Bytes in use: the processes', and what the state adds (a leak, say). */
static ret_t memory(int g, ull *total, ull *reserved, ull *used)
{
    process_t list[MAX_PIDS];
    ret_t r = state_get(total, "gpu%d.memory.total", g);
    if (r != OK) return r;
    *reserved = (ull)state_number(0, "gpu%d.memory.reserved", g);
    *used = (ull)state_number(0, "gpu%d.memory.used", g);
    for (int n = sim_processes(g, list); n-- > 0;) *used += list[n].bytes;
    if (*used + *reserved > *total) *used = *total - *reserved;
    return OK;
}
API ret_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, ull to[3])
{
    ull total, reserved, used;
    DEVICE(g);
    NEEDS(to);
    ret_t r = memory(g, &total, &reserved, &used);
    if (r != OK) return r;
    to[0] = total, to[1] = total - reserved - used, to[2] = reserved + used;
    return OK;
}
typedef struct { uint version; ull total, reserved, free, used; } memory_v2_t;
API ret_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, memory_v2_t *to)
{
    DEVICE(g);
    NEEDS(to);
    ret_t r = memory(g, &to->total, &to->reserved, &to->used);
    if (r == OK) to->free = to->total - to->reserved - to->used;
    return r;
}
API ret_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, ull to[3])
{
    ull total, used;
    DEVICE(g);
    NEEDS(to);
    ret_t r = state_get(&total, "gpu%d.bar1.total", g);
    if (r != OK) return r;
    used = (ull)state_number(0, "gpu%d.bar1.used", g);
    to[0] = total, to[1] = total - used, to[2] = used;
    return OK;
}

API ret_t nvmlDeviceGetTemperature(nvmlDevice_t device, uint sensor, uint *value)
{
    NEEDS(sensor == 0); /* NVML_TEMPERATURE_GPU, the only one */
    return sim_read(__func__, device, value, "temperature.gpu");
}
typedef struct { uint version, sensor; int temperature; } temperature_t;
API ret_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, temperature_t *to)
{
    NEEDS(to);
    return nvmlDeviceGetTemperature(device, to->sensor, (uint *)&to->temperature);
}
API ret_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, uint which, uint *value)
{
    static const char *const keys[] = {"shutdown", "slowdown", "memory_max", "gpu_max",
                                       "acoustic_min", "acoustic_current", "acoustic_max"};
    char key[64];
    NEEDS(which < sizeof keys / sizeof *keys);
    snprintf(key, sizeof key, "temperature.%s", keys[which]);
    return sim_read(__func__, device, value, key);
}

static ret_t clock_of(const char *name, nvmlDevice_t device, uint type, uint *value, const char *what)
{
    static const char *const types[] = {"graphics", "sm", "memory", "video"};
    char key[64];
    NEEDS(type < 4);
    snprintf(key, sizeof key, "clocks.%s.%s", types[type], what);
    return sim_read(name, device, value, key);
}
API ret_t nvmlDeviceGetClockInfo(nvmlDevice_t d, uint type, uint *v)
{
    return clock_of(__func__, d, type, v, "current");
}
API ret_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t d, uint type, uint *v)
{
    return clock_of(__func__, d, type, v, "max");
}
API ret_t nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t d, uint type, uint *v)
{
    return clock_of(__func__, d, type, v, "max");
}
API ret_t nvmlDeviceGetApplicationsClock(nvmlDevice_t d, uint type, uint *v)
{
    return clock_of(__func__, d, type, v, "application");
}
API ret_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t d, uint type, uint *v)
{
    return clock_of(__func__, d, type, v, "default");
}
API ret_t nvmlDeviceGetClock(nvmlDevice_t d, uint type, uint id, uint *v)
{
    static const char *const ids[] = {"current", "application", "default", "max"};
    NEEDS(id < 4);
    return clock_of(__func__, d, type, v, ids[id]);
}

API ret_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, uint counter, uint *value)
{
    NEEDS(counter < 2);
    return sim_read(__func__, device, value, counter ? "pcie.rx" : "pcie.tx");
}

API ret_t nvmlDeviceGetInforomVersion(nvmlDevice_t device, uint object, char *to, uint size)
{
    static const char *const objects[] = {"oem", "ecc", "power", "den"};
    DEVICE(g);
    NEEDS(object < 4);
    return state_get_string(to, size, "gpu%d.inforom.%s", g, objects[object]);
}

/* ECC counters exist while ECC is on. type 0 corrected, 1 uncorrected; span 0 volatile, 1 aggregate */
static ret_t errors(int g, uint type, uint span, ull *value)
{
    if (!state_number(0, "gpu%d.ecc.current", g)) return NOT_SUPPORTED;
    return state_get(value, "gpu%d.ecc.errors.%s.%s", g, span ? "aggregate" : "volatile",
                     type ? "uncorrected" : "corrected");
}
API ret_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, uint type, uint span, ull *value)
{
    DEVICE(g);
    NEEDS(value && type < 2 && span < 2);
    return errors(g, type, span, value);
}
API ret_t nvmlDeviceGetDetailedEccErrors(nvmlDevice_t device, uint type, uint span, ull to[4])
{
    DEVICE(g);
    NEEDS(to && type < 2 && span < 2);
    memset(to, 0, 4 * sizeof *to);
    return errors(g, type, span, &to[2]); /* all in device memory */
}
API ret_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, uint type, uint span, uint where, ull *value)
{
    DEVICE(g);
    NEEDS(value && type < 2 && span < 2);
    ret_t r = errors(g, type, span, value);
    if (r != OK || where == 2) return r;   /* NVML_MEMORY_LOCATION_DEVICE_MEMORY */
    *value = 0;
    return where > 5 || where == 4 ? NOT_SUPPORTED : OK; /* none in texture memory and beyond */
}

static int addresses(int g, uint cause, ull *list, int room)
{
    int n = 0, length;
    const char *p = state_text("gpu%d.retired.%s", g, cause ? "dbe" : "sbe");
    for (; p && sscanf(p, " %lli%n", (long long *)&list[n], &length) == 1; p += length)
        if (++n == room) break;
    return n;
}
API ret_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, uint cause, uint *count, ull *to)
{
    ull list[64];
    DEVICE(g);
    NEEDS(count && cause < 2);
    if (!state_text("gpu%d.retired.pending", g)) return NOT_SUPPORTED;
    uint room = *count, n = (uint)addresses(g, cause, list, 64);
    *count = n;
    if (room < n || (n && !to)) return INSUFFICIENT_SIZE;
    if (n) memcpy(to, list, n * sizeof *list);
    return OK;
}
API ret_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, uint cause, uint *count, ull *to, ull *times)
{
    ret_t r = nvmlDeviceGetRetiredPages(device, cause, count, to);
    for (uint i = 0; r == OK && times && i < *count; i++) times[i] = 0;
    return r;
}

/* No MIG on these cards: none at most, and no handle is one. */
API ret_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, uint *count)
{
    DEVICE(g);
    NEEDS(count);
    *count = 0;
    (void)g;
    return OK;
}
API ret_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, uint *is)
{
    return nvmlDeviceGetMaxMigDeviceCount(device, is);
}
