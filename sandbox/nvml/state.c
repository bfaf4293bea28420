/* The state file: read when it changed, written beside and renamed under a lock. */
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef struct { char *key, *value; } line_t;

/* One table per thread: no locks, and no text vanishes under a reader. */
static __thread line_t *lines;
static __thread int count, room, lock_fd = -1;
static __thread struct stat seen;
static __thread char key_text[256];

static const char *path(void)
{
    const char *p = getenv("VOLTFLEET_SIM_STATE");
    return p && *p ? p : "/run/voltfleet-sim/gpus.state";
}

static char *trim(char *s)
{
    while (*s == ' ' || *s == '\t') s++;
    for (char *e = s + strlen(s); e > s && strchr(" \t\r\n", e[-1]);) *--e = 0;
    return s;
}

static int find(const char *key)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(lines[i].key, key)) return i;
    return -1;
}

static void put(const char *key, const char *value)
{
    int i = find(key);
    if (i >= 0) {
        free(lines[i].value);
        lines[i].value = strdup(value);
        return;
    }
    if (count == room) lines = realloc(lines, sizeof *lines * (size_t)(room = room * 2 + 256));
    lines[count].key = strdup(key);
    lines[count++].value = strdup(value);
}

static void read_file(void)
{
    for (int i = 0; i < count; i++) free(lines[i].key), free(lines[i].value);
    count = 0;
    FILE *f = fopen(path(), "re");
    if (!f) { memset(&seen, 0, sizeof seen); return; }
    fstat(fileno(f), &seen);
    char *line = NULL;
    size_t size = 0;
    while (getline(&line, &size, f) > 0) {
        char *equals = strchr(line, '=');
        if (*trim(line) == '#' || !equals) continue;
        *equals = 0;
        put(trim(line), trim(equals + 1));
    }
    free(line);
    fclose(f);
}

/* What a boot or a healed link changes: the same for readers that may not write the file. */
static int boot_stamp(char *to, size_t size)
{
    char id[64] = "", stat_line[1024];
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (f) { if (!fgets(id, sizeof id, f)) *id = 0; fclose(f); }
    f = fopen("/proc/1/stat", "re");
    if (!f) return 0;
    int good = fgets(stat_line, sizeof stat_line, f) != NULL;
    fclose(f);
    char *p = good ? strrchr(stat_line, ')') : NULL;
    /* field 22 of proc(5), the start of pid 1: a container has a new one at each boot */
    for (int field = 2; p && field < 22; field++) p = strchr(p + 1, ' ');
    if (!p) return 0;
    snprintf(to, size, "%.8s-%lld", id, atoll(p + 1));
    return 1;
}

static void apply_pending(int gpu)
{
    char key[64];
    const char *pending = state_text("gpu%d.ecc.pending", gpu);
    snprintf(key, sizeof key, "gpu%d.ecc.current", gpu);
    if (pending) put(key, pending);
    snprintf(key, sizeof key, "gpu%d.retired.pending", gpu);
    if (find(key) >= 0) put(key, "0");
}

static int settle(void)
{
    int changed = 0;
    char stamp[64], key[64];
    const char *boot = state_text("boot");
    int booted = boot && boot_stamp(stamp, sizeof stamp) && strcmp(boot, stamp);
    if (booted) {
        changed = 1;
        booted = strcmp(boot, "none"); /* else the first use, of what the file says as it is */
        put("boot", stamp);
        for (int g = 0; booted && g < state_number(0, "gpu.count"); g++) {
            apply_pending(g);
            snprintf(key, sizeof key, "gpu%d.persistence", g);
            if (find(key) >= 0) put(key, "0");
            snprintf(key, sizeof key, "gpu%d.power.limit", g);
            const char *limit = state_text("gpu%d.power.default", g);
            if (limit) put(key, limit);
        }
    }
    for (int g = 0; g < state_number(0, "gpu.count"); g++)
        for (int l = 0; l < MAX_LINKS; l++) {
            const char *heals = state_text("gpu%d.link%d.heals", g, l);
            if (!heals || state_number(1, "gpu%d.link%d.state", g, l)) continue;
            int by_time = !strncmp(heals, "at:", 3) && atoll(heals + 3) <= time(NULL);
            if (!by_time && !(booted && strcmp(heals, "never") && strcmp(heals, "bmc"))) continue;
            snprintf(key, sizeof key, "gpu%d.link%d.state", g, l);
            put(key, "1");
            changed = 1;
        }
    return changed;
}

void state_refresh(void)
{
    struct stat now;
    if (lock_fd >= 0) return; /* in a change: what we hold is the newest */
    if (stat(path(), &now)) memset(&now, 0, sizeof now);
    if (!lines || now.st_ino != seen.st_ino || now.st_size != seen.st_size ||
        now.st_mtim.tv_sec != seen.st_mtim.tv_sec || now.st_mtim.tv_nsec != seen.st_mtim.tv_nsec)
        read_file();
    if (settle() && state_begin() == OK) state_end();
}

#define KEY(format) do { va_list ap; va_start(ap, format); \
    vsnprintf(key_text, sizeof key_text, format, ap); va_end(ap); } while (0)

static const char *text(void)
{
    int i = find(key_text);
    return i < 0 || !strcmp(lines[i].value, "unsupported") ? NULL : lines[i].value;
}

const char *state_text(const char *format, ...)
{
    KEY(format);
    return text();
}

long long state_number(long long fallback, const char *format, ...)
{
    KEY(format);
    const char *t = text();
    return t ? strtoll(t, NULL, 0) : fallback;
}

ret_t state_get(ull *value, const char *format, ...)
{
    KEY(format);
    const char *t = text();
    if (!t) return NOT_SUPPORTED;
    *value = strtoull(t, NULL, 0);
    return OK;
}

ret_t state_get_string(char *to, uint size, const char *format, ...)
{
    KEY(format);
    const char *t = text();
    if (!to) return INVALID_ARGUMENT;
    if (!t) return NOT_SUPPORTED;
    if (strlen(t) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(to, t);
    return OK;
}

/* The next line from i on whose key begins with prefix; its index + 1, or 0. */
int state_each(int i, const char *prefix, const char **key, const char **value)
{
    for (; i < count; i++)
        if (!strncmp(lines[i].key, prefix, strlen(prefix))) {
            *key = lines[i].key + strlen(prefix);
            *value = lines[i].value;
            return i + 1;
        }
    return 0;
}

ret_t state_begin(void)
{
    char lock[512];
    snprintf(lock, sizeof lock, "%s.lock", path());
    int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return NO_PERMISSION;
    flock(fd, LOCK_EX);
    lock_fd = fd;
    read_file();
    settle();
    return OK;
}

void state_put(const char *value, const char *format, ...)
{
    KEY(format);
    char key[sizeof key_text];
    strcpy(key, key_text);
    put(key, value);
}

ret_t state_end(void)
{
    char part[512];
    snprintf(part, sizeof part, "%s.%d.part", path(), (int)getpid());
    FILE *f = fopen(part, "we");
    ret_t r = f ? OK : NO_PERMISSION;
    for (int i = 0; f && i < count; i++) fprintf(f, "%s = %s\n", lines[i].key, lines[i].value);
    if (f && (fclose(f) || chmod(part, 0644) || rename(part, path()))) r = UNKNOWN;
    close(lock_fd); /* releases the lock */
    lock_fd = -1;
    stat(path(), &seen);
    if (r != OK) read_file();
    return r;
}

ret_t state_set(const char *value, const char *format, ...)
{
    char key[sizeof key_text];
    KEY(format);
    strcpy(key, key_text);
    ret_t r = state_begin();
    if (r != OK) return r;
    put(key, value);
    return state_end();
}
