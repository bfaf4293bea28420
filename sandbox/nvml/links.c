/* NVLinks, topology, peer-to-peer status, field values. */
#include "sim.h"

#include <stdio.h>
#include <string.h>

/* A link that is up has both ends up. */
int sim_link_active(int gpu, int link)
{
    return state_number(0, "gpu%d.link%d.state", gpu, link) != 0;
}

int sim_linked(int a, int b)
{
    for (int l = 0; l < MAX_LINKS; l++) {
        const char *remote = state_text("gpu%d.link%d.remote", a, l);
        if (remote && sim_find_bus(remote) == b) return 1;
    }
    return 0;
}

static ret_t link_number(const char *name, nvmlDevice_t device, uint link, const char *key, ull *value)
{
    int g;
    ret_t r = sim_device(name, device, &g);
    if (r != OK) return r;
    NEEDS(value && link < ANY_LINKS);
    if (!state_text("gpu%d.link%u.state", g, link)) return NOT_SUPPORTED;
    return state_get(value, "gpu%d.link%u.%s", g, link, key);
}
#define LINK_UINT(name, key) \
    API ret_t name(nvmlDevice_t device, uint link, uint *value) \
    { ull v; ret_t r = link_number(#name, device, link, key, &v); \
      if (r != OK) return r; \
      *value = (uint)v; return OK; }
LINK_UINT(nvmlDeviceGetNvLinkState, "state")
LINK_UINT(nvmlDeviceGetNvLinkVersion, "version")

API ret_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, uint link, uint *value)
{
    ull state;
    ret_t r = link_number(__func__, device, link, "state", &state);
    NEEDS(value);
    if (r == OK) *value = 0; /* NVML_NVLINK_DEVICE_TYPE_GPU */
    return r;
}

API ret_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, uint link, uint which, uint *value)
{
    static const char *const keys[] = {"p2p", "sysmem", "p2p_atomics", "sysmem_atomics", "sli", "valid"};
    char key[32];
    ull number;
    NEEDS(which < sizeof keys / sizeof *keys && value);
    snprintf(key, sizeof key, "cap.%s", keys[which]);
    ret_t r = link_number(__func__, device, link, key, &number);
    if (r == OK) *value = (uint)number;
    return r;
}

static const char *const counters[] = {"errors.replay", "errors.recovery", "errors.crc_flit",
                                       "errors.crc_data"};
API ret_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, uint link, uint which, ull *value)
{
    NEEDS(which < 4);
    return link_number(__func__, device, link, counters[which], value);
}

API ret_t nvmlDeviceResetNvLinkErrorCounters(nvmlDevice_t device, uint link)
{
    DEVICE(g);
    NEEDS(link < ANY_LINKS);
    if (!state_text("gpu%d.link%u.state", g, link)) return NOT_SUPPORTED;
    ret_t r = state_begin();
    if (r != OK) return r;
    for (int i = 0; i < 4; i++) state_put("0", "gpu%d.link%u.%s", g, link, counters[i]);
    return state_end();
}

/* nvmlGpuTopologyLevel_t of a pair; topology.A.B (A < B), NODE where the state does not say */
int sim_level(int a, int b)
{
    static const struct { const char *name; int level; } levels[] = {
        {"internal", 0}, {"pix", 10}, {"pxb", 20}, {"phb", 30}, {"node", 40}, {"sys", 50}};
    if (a == b) return 0;
    const char *text = state_text("topology.%d.%d", a < b ? a : b, a < b ? b : a);
    for (size_t i = 0; text && i < sizeof levels / sizeof *levels; i++)
        if (!strcmp(levels[i].name, text)) return levels[i].level;
    return 40;
}

API ret_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t peer, int *level)
{
    int other;
    DEVICE(g);
    ret_t r = sim_device(__func__, peer, &other);
    if (r != OK) return r;
    NEEDS(level);
    *level = sim_level(g, other);
    return OK;
}

API ret_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, int level, uint *count, nvmlDevice_t *to)
{
    uint n = 0;
    DEVICE(g);
    NEEDS(count);
    for (int other = 0; other < state_number(0, "gpu.count"); other++) {
        if (other == g || sim_level(g, other) != level) continue;
        if (to && n < *count) to[n] = sim_handle(other);
        n++;
    }
    *count = n;
    return OK;
}

API ret_t nvmlDeviceOnSameBoard(nvmlDevice_t device, nvmlDevice_t peer, int *same)
{
    DEVICE(g);
    NEEDS(same);
    *same = sim_handle(g) == peer;
    return OK;
}

/* nvmlGpuP2PStatus_t: 0 OK, 3 the chipset's topology does not allow it, 5 not supported */
API ret_t nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t peer, uint which, uint *status)
{
    static const char *const caps[] = {"read", "write", "nvlink", "atomics", "prop"};
    int other;
    DEVICE(g);
    ret_t r = sim_device(__func__, peer, &other);
    if (r != OK) return r;
    NEEDS(status && which < 5 && other != g);
    int a = g < other ? g : other, b = g < other ? other : g, linked = 0;
    for (int l = 0; l < MAX_LINKS; l++) {
        const char *remote = state_text("gpu%d.link%d.remote", g, l);
        linked |= remote && sim_find_bus(remote) == other && sim_link_active(g, l);
    }
    int near = linked || sim_level(g, other) <= 30;
    long long fallback = which == 2 || which == 3 ? (linked ? 0 : 5) : (near ? 0 : 3);
    *status = (uint)state_number(fallback, "p2p.%d.%d.%s", a, b, caps[which]);
    return OK;
}

static ret_t affinity(nvmlDevice_t device, const char *name, uint size, unsigned long *set,
                      const char *key)
{
    int g, low, high, length;
    ret_t r = sim_device(name, device, &g);
    if (r != OK) return r;
    NEEDS(set && size);
    memset(set, 0, size * sizeof *set);
    const char *p = state_text("gpu%d.%s", g, key);
    if (!p) return NOT_SUPPORTED;
    for (; sscanf(p, "%d%n", &low, &length) == 1; p += *p == ',') { /* "0-15,32-47" */
        p += length;
        high = low;
        if (*p == '-' && sscanf(p + 1, "%d%n", &high, &length) == 1) p += 1 + length;
        for (; low <= high && low / 64 < (int)size; low++) set[low / 64] |= 1ul << low % 64;
    }
    return OK;
}
API ret_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, uint size, unsigned long *set)
{
    return affinity(device, __func__, size, set, "affinity.cpus");
}
API ret_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, uint size, unsigned long *set, uint scope)
{
    (void)scope;
    return affinity(device, __func__, size, set, "affinity.cpus");
}
API ret_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, uint size, unsigned long *set, uint scope)
{
    (void)scope;
    return affinity(device, __func__, size, set, "affinity.nodes");
}

typedef struct {
    uint field, scope;
    long long timestamp, latency;
    uint type; /* nvmlValueType_t: 1 unsigned int, 3 unsigned long long */
    ret_t result;
    union { uint number; ull wide; } value;
} field_t;

static ull errors(int g, uint link, uint which)
{
    static const char *const keys[] = {"crc_flit", "crc_data", "replay", "recovery"};
    return (ull)state_number(0, "gpu%d.link%u.errors.%s", g, link, keys[which]);
}

static ull speed(int g, uint link) /* MB/s */
{
    return sim_link_active(g, (int)link) ? (ull)state_number(25781, "gpu%d.link.speed", g) : 0;
}

/* Numbers of NVML_FI_DEV_*: retired pages 29 to 31 and 92, 93; then of links: error counters 32
 * to 59 (six links and their total, per counter), speeds 84 to 90, count 91, and from 161 on
 * what asks for one link in the field's scope; power from 185 on. */
static ret_t field(int g, field_t *f)
{
    uint id = f->field, link = f->scope;
    f->type = 1;
    if (id == 31 || id == 92 || id == 93)
        return state_get(&f->value.wide, "gpu%d.retired.pending", g);
    if (id == 94) return state_get(&f->value.wide, "gpu%d.pcie.replays", g);
    if (id >= 185 && id <= 192) { /* power in mW; scope 0 is the GPU */
        static const char *const keys[] = {"usage", "usage", "min", "max", "default", "limit",
                                           "none", "limit"};
        return link ? NOT_SUPPORTED : state_get(&f->value.wide, "gpu%d.power.%s", g, keys[id - 185]);
    }
    if (!state_text("gpu%d.link0.state", g)) {
        /* a V100 without a connector: the chip's six links are there, all inactive */
        if (state_number(0, "gpu%d.architecture", g) != 5 || (id != 91 && id != 165))
            return NOT_SUPPORTED;
        f->value.number = id == 91 ? MAX_LINKS : 0;
        return OK;
    }
    if (id == 91) { f->value.number = MAX_LINKS; return OK; }
    if (id >= 32 && id <= 59) {
        uint which = (id - 32) / 7;
        f->type = 3;
        link = (id - 32) % 7;
        for (uint l = 0; l < MAX_LINKS; l++)
            if (link == MAX_LINKS || l == link) f->value.wide += errors(g, l, which);
        return OK;
    }
    if (id == 90) { /* the speed that all links which are up have */
        for (uint l = 0; l < MAX_LINKS; l++) if (speed(g, l)) f->value.wide = speed(g, l);
        return OK;
    }
    if (id >= 84 && id <= 89) { f->value.wide = speed(g, id - 84); return OK; }
    if (id < 161 || id > 166 || link >= MAX_LINKS) return NOT_SUPPORTED;
    if (id == 164) f->value.wide = speed(g, link);
    else if (id >= 165) return state_get(&f->value.wide, "gpu%d.link%u.%s", g, link,
                                         id == 165 ? "state" : "version");
    else f->value.wide = errors(g, link, id == 161 ? 2 : id == 162 ? 3 : 0);
    return OK;
}
API ret_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, field_t *fields)
{
    DEVICE(g);
    NEEDS(fields && count > 0);
    for (int i = 0; i < count; i++) {
        fields[i].timestamp = fields[i].latency = 0;
        fields[i].value.wide = 0;
        fields[i].result = field(g, &fields[i]);
    }
    return OK;
}
