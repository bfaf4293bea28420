/* What changes a GPU: modes, limits, fans, reset. Each is written to the state file. */
#include "sim.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static ret_t set(const char *name, nvmlDevice_t device, ull value, const char *key)
{
    char text[32];
    int g;
    ret_t r = sim_device(name, device, &g);
    if (r != OK) return r;
    if (!state_text("gpu%d.%s", g, key)) return NOT_SUPPORTED;
    snprintf(text, sizeof text, "%llu", value);
    return state_set(text, "gpu%d.%s", g, key);
}

API ret_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, uint mode)
{
    NEEDS(mode < 2);
    return set(__func__, device, mode, "persistence");
}
API ret_t nvmlDeviceSetEccMode(nvmlDevice_t device, uint mode)
{
    NEEDS(mode < 2);
    return set(__func__, device, mode, "ecc.pending");
}
API ret_t nvmlDeviceSetComputeMode(nvmlDevice_t device, uint mode)
{
    NEEDS(mode < 4);
    return set(__func__, device, mode, "compute_mode");
}
API ret_t nvmlDeviceSetAccountingMode(nvmlDevice_t device, uint mode)
{
    NEEDS(mode < 2);
    return set(__func__, device, mode, "accounting");
}

API ret_t nvmlDeviceClearEccErrorCounts(nvmlDevice_t device, uint span)
{
    const char *which = span ? "aggregate" : "volatile";
    DEVICE(g);
    NEEDS(span < 2);
    if (!state_number(0, "gpu%d.ecc.current", g)) return NOT_SUPPORTED;
    ret_t r = state_begin();
    if (r != OK) return r;
    state_put("0", "gpu%d.ecc.errors.%s.corrected", g, which);
    state_put("0", "gpu%d.ecc.errors.%s.uncorrected", g, which);
    return state_end();
}

API ret_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, uint milliwatts)
{
    DEVICE(g);
    NEEDS(milliwatts >= state_number(0, "gpu%d.power.min", g) &&
          milliwatts <= state_number(0, "gpu%d.power.max", g));
    return set(__func__, device, milliwatts, "power.limit");
}
typedef struct { uint version; unsigned char scope; uint milliwatts; } power_t;
API ret_t nvmlDeviceSetPowerManagementLimit_v2(nvmlDevice_t device, power_t *value)
{
    NEEDS(value);
    if (value->scope) return NOT_SUPPORTED; /* 0 is the GPU; other scopes came with later boards */
    return nvmlDeviceSetPowerManagementLimit(device, value->milliwatts);
}

API ret_t nvmlDeviceSetApplicationsClocks(nvmlDevice_t device, uint memory, uint graphics)
{
    char text[32];
    DEVICE(g);
    NEEDS(memory == state_number(-1, "gpu%d.clocks.memory.max", g) &&
          graphics <= state_number(0, "gpu%d.clocks.graphics.max", g));
    snprintf(text, sizeof text, "%u", graphics);
    ret_t r = state_begin();
    if (r != OK) return r;
    state_put(text, "gpu%d.clocks.graphics.application", g);
    state_put(text, "gpu%d.clocks.sm.application", g);
    return state_end();
}
API ret_t nvmlDeviceResetApplicationsClocks(nvmlDevice_t device)
{
    DEVICE(g);
    return nvmlDeviceSetApplicationsClocks(
        device, (uint)state_number(0, "gpu%d.clocks.memory.max", g),
        (uint)state_number(0, "gpu%d.clocks.graphics.default", g));
}

/* Fans: none on a passive card, where real hardware answers "invalid argument" for fan 0. */
READS(nvmlDeviceGetNumFans, "fans")

static ret_t fan(const char *name, nvmlDevice_t device, uint index, uint *value, const char *key)
{
    char full[64];
    int g;
    ret_t r = sim_device(name, device, &g);
    if (r != OK) return r;
    NEEDS(index < state_number(0, "gpu%d.fans", g));
    snprintf(full, sizeof full, "fan%u.%s", index, key);
    return sim_read(name, device, value, full);
}
API ret_t nvmlDeviceGetFanSpeed_v2(nvmlDevice_t d, uint index, uint *value)
{
    return fan(__func__, d, index, value, "speed");
}
API ret_t nvmlDeviceGetTargetFanSpeed(nvmlDevice_t d, uint index, uint *value)
{
    return fan(__func__, d, index, value, "speed");
}
API ret_t nvmlDeviceGetFanControlPolicy_v2(nvmlDevice_t d, uint index, uint *value)
{
    return fan(__func__, d, index, value, "policy");
}
API ret_t nvmlDeviceGetFanSpeed(nvmlDevice_t device, uint *value)
{
    return sim_read(__func__, device, value, "fan0.speed");
}
API ret_t nvmlDeviceGetMinMaxFanSpeed(nvmlDevice_t device, uint *low, uint *high)
{
    DEVICE(g);
    NEEDS(low && high && state_number(0, "gpu%d.fans", g) > 0);
    *low = (uint)state_number(30, "gpu%d.fan.min", g);
    *high = (uint)state_number(100, "gpu%d.fan.max", g);
    return OK;
}

/* policy 0: the card decides, 1: manual */
static ret_t set_fan(const char *name, nvmlDevice_t device, uint index, const char *speed, const char *policy)
{
    int g;
    ret_t r = sim_device(name, device, &g);
    if (r != OK) return r;
    NEEDS(index < state_number(0, "gpu%d.fans", g));
    r = state_begin();
    if (r != OK) return r;
    if (speed) state_put(speed, "gpu%d.fan%u.speed", g, index);
    state_put(policy, "gpu%d.fan%u.policy", g, index);
    return state_end();
}
API ret_t nvmlDeviceSetFanSpeed_v2(nvmlDevice_t device, uint index, uint percent)
{
    char text[16];
    DEVICE(g);
    NEEDS(percent >= state_number(30, "gpu%d.fan.min", g) &&
          percent <= state_number(100, "gpu%d.fan.max", g));
    snprintf(text, sizeof text, "%u", percent);
    return set_fan(__func__, device, index, text, "1");
}
API ret_t nvmlDeviceSetDefaultFanSpeed_v2(nvmlDevice_t device, uint index)
{
    return set_fan(__func__, device, index, NULL, "0");
}
API ret_t nvmlDeviceSetFanControlPolicy(nvmlDevice_t device, uint index, uint policy)
{
    NEEDS(policy < 2);
    return set_fan(__func__, device, index, NULL, policy ? "1" : "0");
}

/* Events: a set can be made and waited on; nothing ever happens in it. */
API ret_t nvmlEventSetCreate(void **set)
{
    static int one;
    CALL();
    NEEDS(set);
    *set = &one;
    return OK;
}
API ret_t nvmlEventSetFree(void *set) { CALL(); NEEDS(set); return OK; }
API ret_t nvmlDeviceRegisterEvents(nvmlDevice_t device, ull types, void *set)
{
    DEVICE(g);
    NEEDS(set);
    (void)types, (void)g;
    return OK;
}
API ret_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, ull *types)
{
    DEVICE(g);
    NEEDS(types);
    *types = 0x1f; /* SBE, DBE, P-state, Xid, clock */
    (void)g;
    return OK;
}
API ret_t nvmlEventSetWait_v2(void *set, void *data, uint milliseconds)
{
    CALL();
    NEEDS(set && data);
    usleep(milliseconds * 1000);
    return TIMEOUT;
}
API ret_t nvmlEventSetWait(void *set, void *data, uint milliseconds)
{
    return nvmlEventSetWait_v2(set, data, milliseconds);
}

/* Reset of a set of GPUs in one go. A client refuses it, so does the state's busy flag; NVLink
 * peers must be in the set (before Ampere); a lost GPU stays lost unless the state says
 * lost.heals = reset. Pending modes become current. */
ret_t sim_reset(const int *gpus, int count)
{
    uint pids[MAX_PIDS * 2 + 2];
    ull in_set = 0;
    for (int i = 0; i < count; i++) {
        int g = gpus[i];
        in_set |= 1ull << g;
        if (!state_text("gpu%d.reset", g)) return NOT_SUPPORTED;
        if (state_number(0, "gpu%d.busy", g) || sim_clients(g, pids)) return IN_USE;
        const char *heals = state_text("gpu%d.lost.heals", g);
        if (state_number(0, "gpu%d.lost", g) && (!heals || strcmp(heals, "reset")))
            return GPU_IS_LOST;
    }
    for (int i = 0; i < count; i++)
        for (int other = 0; other < state_number(0, "gpu.count"); other++)
            if (sim_linked(gpus[i], other) && !(in_set >> other & 1)) return IN_USE;
    ret_t r = state_begin();
    if (r != OK) return r;
    for (int i = 0; i < count; i++) {
        int g = gpus[i];
        char resets[32];
        state_put("0", "gpu%d.lost", g);
        const char *pending = state_text("gpu%d.ecc.pending", g);
        if (pending && strcmp(state_text("gpu%d.reset", g), "keeps-ecc"))
            state_put(pending, "gpu%d.ecc.current", g);
        if (state_text("gpu%d.retired.pending", g)) state_put("0", "gpu%d.retired.pending", g);
        for (int l = 0; l < MAX_LINKS; l++) {
            const char *heals = state_text("gpu%d.link%d.heals", g, l);
            if (state_text("gpu%d.link%d.state", g, l) && heals && !strcmp(heals, "reset"))
                state_put("1", "gpu%d.link%d.state", g, l);
        }
        snprintf(resets, sizeof resets, "%lld", state_number(0, "gpu%d.resets", g) + 1);
        state_put(resets, "gpu%d.resets", g);
    }
    return state_end();
}
