/* Simulated NVML: what the sources share. Types and numbers are those of the public NVML API.
 *
 * Every answer comes from a text file of `key = value` lines (see state.py). A key that is
 * missing, or whose value is "unsupported", makes the call answer NVML_ERROR_NOT_SUPPORTED.
 */
#ifndef VOLTFLEET_SIM_H
#define VOLTFLEET_SIM_H

#include <stddef.h>

#define API __attribute__((visibility("default")))
#define MAX_GPUS 32
#define MAX_LINKS 6  /* V100: six NVLinks */
#define ANY_LINKS 18 /* NVML_NVLINK_MAX_LINKS: below it, a link a card has not is "not supported" */
#define MAX_PIDS 64

typedef unsigned int uint;
typedef unsigned long long ull;
typedef struct { int index; } gpu_t;
typedef gpu_t *nvmlDevice_t;

/* nvmlReturn_t */
typedef enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4,
    NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10,
    FUNCTION_NOT_FOUND = 13, GPU_IS_LOST = 15, RESET_REQUIRED = 16, LIB_RM_VERSION_MISMATCH = 18,
    IN_USE = 19, UNKNOWN = 999
} ret_t;

/* state.c: the file */
const char *state_text(const char *format, ...) __attribute__((format(printf, 1, 2)));
long long state_number(long long fallback, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
ret_t state_get(ull *value, const char *format, ...) __attribute__((format(printf, 2, 3)));
ret_t state_get_string(char *to, uint size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
int state_each(int i, const char *prefix, const char **key, const char **value);
/* A change: begin (locks, reads again), any number of puts, end (writes, renames, unlocks). */
ret_t state_begin(void);
void state_put(const char *value, const char *format, ...) __attribute__((format(printf, 2, 3)));
ret_t state_end(void);
ret_t state_set(const char *value, const char *format, ...) __attribute__((format(printf, 2, 3)));
void state_refresh(void);

/* core.c: every API function begins with one of these */
ret_t sim_call(const char *name);
ret_t sim_device(const char *name, nvmlDevice_t device, int *gpu);
nvmlDevice_t sim_handle(int gpu);
int sim_find_bus(const char *bus);
uint sim_bus(int gpu, uint *domain, uint *device);

#define CALL() do { ret_t r_ = sim_call(__func__); if (r_ != OK) return r_; } while (0)
#define DEVICE(g) int g; do { ret_t r_ = sim_device(__func__, device, &g); \
                              if (r_ != OK) return r_; } while (0)
#define NEEDS(p) do { if (!(p)) return INVALID_ARGUMENT; } while (0)

/* One number of a GPU by its key, as a whole API function. */
#define READS(name, key) \
    API ret_t name(nvmlDevice_t device, uint *value) { return sim_read(#name, device, value, key); }
#define READS_TEXT(name, key) \
    API ret_t name(nvmlDevice_t device, char *to, uint size) \
    { int g; ret_t r = sim_device(#name, device, &g); \
      return r != OK ? r : state_get_string(to, size, "gpu%d." key, g); }
ret_t sim_read(const char *name, nvmlDevice_t device, uint *value, const char *key);

/* processes.c */
typedef struct { uint pid; ull bytes; } process_t;
int sim_processes(int gpu, process_t *list);
int sim_clients(int gpu, uint *pids);

/* links.c */
int sim_linked(int a, int b);
int sim_level(int a, int b);
int sim_link_active(int gpu, int link);

/* control.c */
ret_t sim_reset(const int *gpus, int count);

#endif
