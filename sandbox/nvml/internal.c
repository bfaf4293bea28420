/* The private table that nvidia-smi 550.163.01 takes from NVML besides the public functions.
 *
 * Other builds of nvidia-smi number it otherwise. What each slot does was found by running that
 * program over a table that wrote down its calls; the others answer "not supported", which it
 * prints as N/A.
 */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS 320

static ret_t unsupported(void) { return NOT_SUPPORTED; }
static ret_t fine(void) { return OK; }

/* 81: handle by index */
ret_t nvmlDeviceGetHandleByIndex_v2(uint index, nvmlDevice_t *device);

/* 23: topology level of two PCI bus ids, counted from 0 for PIX to 4 for SYS */
static ret_t level(const char *a, const char *b, uint *to)
{
    int first = sim_find_bus(a), second = sim_find_bus(b);
    if (first < 0 || second < 0) return NOT_FOUND;
    int known = sim_level(first, second);
    *to = known < 10 ? 0 : (uint)(known / 10 - 1);
    return OK;
}

/* 20: is this the primary GPU (of the console)? 169: is there an NVSwitch fabric? */
static ret_t no_primary(nvmlDevice_t device, uint *primary)
{
    int g;
    *primary = 0;
    return sim_device("reset", device, &g);
}
static ret_t no_fabric(uint *fabric)
{
    *fabric = 0;
    return OK;
}

/* 182 to 184: the group of GPUs that have to be reset with the given ones, by PCI bus id */
typedef struct { int in[MAX_GPUS]; } group_t;

static ret_t group_make(group_t **to, const nvmlDevice_t *devices, uint count)
{
    group_t *group = calloc(1, sizeof *group);
    for (uint i = 0; i < count; i++) group->in[devices[i]->index] = 1;
    for (int more = 1; more--;)
        for (int a = 0; a < state_number(0, "gpu.count"); a++)
            for (int b = 0; group->in[a] && b < state_number(0, "gpu.count"); b++)
                if (!group->in[b] && sim_linked(a, b)) group->in[b] = more = 1;
    *to = group;
    return OK;
}
static ret_t group_list(const group_t *group, char **to, uint *count)
{
    uint n = 0, domain, device;
    for (int g = 0; g < state_number(0, "gpu.count"); g++) {
        if (!group->in[g]) continue;
        uint bus = sim_bus(g, &domain, &device);
        snprintf(to[n++], 32, "%08X:%02X:%02X.0", domain, bus, device);
    }
    *count = n;
    return OK;
}
static ret_t group_free(group_t *group)
{
    free(group);
    return OK;
}

/* 168: reset; `each` gets what kept a GPU from it, and then the whole answers "unknown" */
static ret_t reset(uint count, const nvmlDevice_t *devices, ret_t *each)
{
    int gpus[MAX_GPUS], held = 0;
    uint pids[MAX_PIDS * 2 + 2];
    ret_t r = sim_call("reset");
    for (uint i = 0; r == OK && i < count; i++) {
        gpus[i] = devices[i]->index;
        each[i] = state_number(0, "gpu%d.busy", gpus[i]) || sim_clients(gpus[i], pids) ? IN_USE : OK;
        held += each[i] != OK;
    }
    if (r != OK) return r;
    return held ? UNKNOWN : sim_reset(gpus, (int)count);
}

/* 213 to 215: compute, graphics and MPS processes */
typedef struct {
    uint pid;
    ull bytes;
    uint gpu_instance, compute_instance;
    ull protected_bytes;
    char name[4096];
} row_t;

static ret_t compute(nvmlDevice_t device, uint *count, row_t *rows)
{
    process_t list[MAX_PIDS];
    char path[64];
    int g;
    ret_t r = sim_device("nvmlDeviceGetComputeRunningProcesses_v3", device, &g);
    if (r != OK) return r;
    uint n = (uint)sim_processes(g, list);
    for (uint i = 0; i < n && i < *count; i++) {
        memset(&rows[i], 0, sizeof rows[i]);
        rows[i].pid = list[i].pid;
        rows[i].bytes = list[i].bytes;
        rows[i].gpu_instance = rows[i].compute_instance = ~0u;
        snprintf(path, sizeof path, "/proc/%u/cmdline", list[i].pid);
        FILE *f = fopen(path, "re");
        if (f && !fread(rows[i].name, 1, sizeof rows[i].name - 1, f)) rows[i].name[0] = 0;
        if (f) fclose(f);
    }
    *count = n;
    return OK;
}
static ret_t nobody(nvmlDevice_t device, uint *count)
{
    (void)device;
    *count = 0;
    return OK;
}

typedef void (*slot_t)(void);
static const struct { size_t size; slot_t slots[SLOTS]; } table = {
    sizeof table,
    {
#define SLOT(n) [(n) - 1] /* a slot's number counts words from the table's start, the size is 0 */
        [0 ... SLOTS - 1] = (slot_t)unsupported,
        SLOT(20) = (slot_t)no_primary,
        SLOT(23) = (slot_t)level,
        SLOT(26) = (slot_t)fine, /* a debug line */
        SLOT(81) = (slot_t)nvmlDeviceGetHandleByIndex_v2,
        SLOT(168) = (slot_t)reset,
        SLOT(169) = (slot_t)no_fabric,
        SLOT(182) = (slot_t)group_make,
        SLOT(183) = (slot_t)group_list,
        SLOT(184) = (slot_t)group_free,
        SLOT(213) = (slot_t)compute,
        SLOT(214) = (slot_t)nobody,
        SLOT(215) = (slot_t)nobody,
    },
};

API ret_t nvmlInternalGetExportTable(const void **to, const void *id)
{
    NEEDS(to && id);
    *to = &table;
    return OK;
}
