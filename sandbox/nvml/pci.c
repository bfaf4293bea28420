/* Where GPUs sit: PCI addresses and ids, of the GPUs and of the other ends of their links. */
#include "sim.h"

#include <stdio.h>
#include <string.h>

uint sim_bus(int gpu, uint *domain, uint *device)
{
    uint bus = 0;
    const char *text = state_text("gpu%d.pci.bus", gpu);
    *domain = *device = 0;
    if (text) sscanf(text, "%x:%x:%x", domain, &bus, device);
    return bus;
}

int sim_find_bus(const char *text)
{
    uint domain = 0, bus = 0, slot = 0, d, s;
    if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        if (sscanf(text, "%x:%x", &bus, &slot) != 2) return -1;
    }
    for (int g = 0; g < state_number(0, "gpu.count"); g++)
        if (sim_bus(g, &d, &s) == bus && d == domain && s == slot) return g;
    return -1;
}

typedef struct {
    char legacy[16];
    uint domain, bus, device, id, subsystem;
    char text[32];
} pci_t;
typedef struct { uint version, domain, bus, device, id, subsystem, base, sub; char text[32]; } pci_ext_t;

/* "10de:1db6" as NVML has it: device in the high half, vendor in the low */
static uint pci_id(int gpu, const char *key)
{
    uint vendor = 0, id = 0;
    const char *text = state_text("gpu%d.pci.%s", gpu, key);
    if (text) sscanf(text, "%x:%x", &vendor, &id);
    return id << 16 | vendor;
}

static void fill(int gpu, pci_t *pci, int with_text)
{
    pci->bus = sim_bus(gpu, &pci->domain, &pci->device);
    pci->id = pci_id(gpu, "device");
    pci->subsystem = pci_id(gpu, "subsystem");
    snprintf(pci->legacy, sizeof pci->legacy, "%04X:%02X:%02X.0", pci->domain & 0xffff,
             pci->bus & 0xff, pci->device & 0xff);
    if (with_text)
        snprintf(pci->text, sizeof pci->text, "%08X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
}

API ret_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, pci_t *pci)
{
    DEVICE(g);
    NEEDS(pci);
    fill(g, pci, 1);
    return OK;
}
API ret_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, pci_t *pci)
{
    DEVICE(g);
    NEEDS(pci);
    fill(g, pci, 0);
    return OK;
}
API ret_t nvmlDeviceGetPciInfo(nvmlDevice_t device, pci_t *pci)
{
    return nvmlDeviceGetPciInfo_v2(device, pci);
}
API ret_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, pci_ext_t *to)
{
    pci_t pci;
    DEVICE(g);
    NEEDS(to);
    fill(g, &pci, 1);
    to->domain = pci.domain, to->bus = pci.bus, to->device = pci.device;
    to->id = pci.id, to->subsystem = pci.subsystem, to->base = 3, to->sub = 2;
    memcpy(to->text, pci.text, sizeof to->text);
    return OK;
}

API ret_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, uint link, pci_t *pci)
{
    DEVICE(g);
    NEEDS(pci && link < ANY_LINKS);
    if (!sim_link_active(g, (int)link)) return NOT_SUPPORTED;
    int other = sim_find_bus(state_text("gpu%d.link%u.remote", g, link));
    if (other < 0) return NOT_FOUND;
    fill(other, pci, 1);
    return OK;
}
API ret_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, uint link, pci_t *pci)
{
    return nvmlDeviceGetNvLinkRemotePciInfo_v2(device, link, pci);
}
