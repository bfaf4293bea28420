/* Processes on a GPU: those the state names, by pid or by program name. */
#include "sim.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int alive(const char *pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%.20s", pid);
    return access(path, F_OK) == 0;
}

static int named(const char *pid, const char *name)
{
    char path[64], comm[64] = "";
    snprintf(path, sizeof path, "/proc/%.20s/comm", pid);
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    if (fgets(comm, sizeof comm, f)) comm[strcspn(comm, "\n")] = 0;
    fclose(f);
    return !strcmp(comm, name);
}

/* gpuN.process.PID = MiB, gpuN.process.NAME = MiB: compute processes, while they live */
int sim_processes(int gpu, process_t *list)
{
    char prefix[64];
    const char *key, *value;
    int n = 0;
    snprintf(prefix, sizeof prefix, "gpu%d.process.", gpu);
    for (int i = 0; n < MAX_PIDS && (i = state_each(i, prefix, &key, &value));) {
        ull bytes = strtoull(value, NULL, 10) << 20;
        if (isdigit((unsigned char)*key)) {
            if (alive(key)) list[n++] = (process_t){(uint)atoi(key), bytes};
            continue;
        }
        DIR *proc = opendir("/proc");
        for (struct dirent *e; proc && n < MAX_PIDS && (e = readdir(proc));)
            if (isdigit((unsigned char)*e->d_name) && named(e->d_name, key))
                list[n++] = (process_t){(uint)atoi(e->d_name), bytes};
        if (proc) closedir(proc);
    }
    return n;
}

static int opens(const char *pid, const char *node)
{
    char path[300], target[256];
    int found = 0;
    snprintf(path, sizeof path, "/proc/%.20s/fd", pid);
    DIR *fds = opendir(path);
    for (struct dirent *e; fds && !found && (e = readdir(fds));) {
        snprintf(path, sizeof path, "/proc/%.20s/fd/%.20s", pid, e->d_name);
        ssize_t length = readlink(path, target, sizeof target - 1);
        if (length > 0) target[length] = 0, found = !strcmp(target, node);
    }
    if (fds) closedir(fds);
    return found;
}

/* Who keeps a GPU from being reset: its processes, gpuN.client.PID, holders of /dev/nvidiaN. */
int sim_clients(int gpu, uint *pids)
{
    char prefix[64], node[64];
    const char *key, *value;
    process_t list[MAX_PIDS];
    int n = sim_processes(gpu, list);
    for (int i = 0; i < n; i++) pids[i] = list[i].pid;
    snprintf(prefix, sizeof prefix, "gpu%d.client.", gpu);
    for (int i = 0; n < MAX_PIDS && (i = state_each(i, prefix, &key, &value));)
        if (alive(key)) pids[n++] = (uint)atoi(key);
    snprintf(node, sizeof node, "/dev/nvidia%d", gpu);
    DIR *proc = opendir("/proc");
    for (struct dirent *e; proc && n < MAX_PIDS && (e = readdir(proc));)
        if (isdigit((unsigned char)*e->d_name) && atoi(e->d_name) != getpid() &&
            opens(e->d_name, node))
            pids[n++] = (uint)atoi(e->d_name);
    if (proc) closedir(proc);
    return n;
}

/* v2 and v3 of nvmlProcessInfo_t; v1 ends after the bytes */
typedef struct { uint pid; ull bytes; uint gpu_instance, compute_instance; } info_t;
typedef struct { uint pid; ull bytes; } info_v1_t;

API ret_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, uint *count, info_t *to)
{
    process_t list[MAX_PIDS];
    DEVICE(g);
    NEEDS(count);
    uint room = *count, n = (uint)sim_processes(g, list);
    *count = n;
    if (room < n || (n && !to)) return INSUFFICIENT_SIZE;
    for (uint i = 0; i < n; i++) to[i] = (info_t){list[i].pid, list[i].bytes, ~0u, ~0u};
    return OK;
}
API ret_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, uint *count, info_t *to)
{
    return nvmlDeviceGetComputeRunningProcesses_v3(device, count, to);
}
API ret_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, uint *count, info_v1_t *to)
{
    info_t list[MAX_PIDS];
    NEEDS(count);
    uint room = *count;
    *count = MAX_PIDS;
    ret_t r = nvmlDeviceGetComputeRunningProcesses_v3(device, count, list);
    if (r != OK) return r;
    if (room < *count || (*count && !to)) return INSUFFICIENT_SIZE;
    for (uint i = 0; i < *count; i++) to[i] = (info_v1_t){list[i].pid, list[i].bytes};
    return OK;
}

#define NOBODY(name) \
    API ret_t name(nvmlDevice_t device, uint *count, void *to) \
    { DEVICE(g); NEEDS(count); (void)to; (void)g; *count = 0; return OK; }
NOBODY(nvmlDeviceGetGraphicsRunningProcesses)
NOBODY(nvmlDeviceGetGraphicsRunningProcesses_v2)
NOBODY(nvmlDeviceGetGraphicsRunningProcesses_v3)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses_v2)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses_v3)
