/* A stand-in for libnvidia-ml.so.1: what pynvml asks, answered from a file that a test writes.
 *
 * The file `gpus` beside the library: each line is one GPU, `uuid state pid,pid,... used_mib`, where
 * state is ok, ecc (two uncorrected errors), pending (a row and a page to be given up), reset and
 * reboot (the driver asks for one; the branches before 565 do not say), lost (known by its handle, lost when
 * asked), fallen (no handle at all), gone (not listed) or hangs.
 * A process that has ended is not shown, nor is the memory that it had.
 * The file `links` beside it, where there is one: for each GPU the number of its NVLink group, or `-`
 * (PCIe only), or the one word `old` (a driver that does not know the question). Without it all are
 * linked, as on one NVSwitch.
 * The file `driver` beside it, where there is one: the driver's version (else 570.00).
 * The structures are those of NVML 12 (nvml.h), as pynvml declares them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, NOT_SUPPORTED = 3, DRIVER_NOT_LOADED = 9, FUNCTION_NOT_FOUND = 13, GPU_IS_LOST = 15, TOO_SMALL = 7 };
enum { P2P_OK = 0, P2P_NOT_SUPPORTED = 5, P2P_NVLINK = 2 };
enum { MAX_GPUS = 16, MAX_PIDS = 8 };

enum { RECOVERY_ACTION = 230, UNSIGNED = 1 };
struct gpu { char uuid[80]; char state[16]; unsigned pids[MAX_PIDS]; unsigned count, used_mib, bus; };
struct memory { unsigned long long total, free, used; };
struct process { unsigned pid; unsigned long long used; unsigned instance, compute; };
struct field {
    unsigned id, scope;
    long long timestamp, latency;
    int type, code;
    union { unsigned number; unsigned long long room; } value;
};
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };

static struct gpu gpus[MAX_GPUS];
static unsigned count;

static FILE *beside(const char *name)
{
    Dl_info own;
    char path[4096];
    if (!dladdr((void *)beside, &own))
        return NULL;
    snprintf(path, sizeof path, "%s", own.dli_fname);
    char *slash = strrchr(path, '/');
    snprintf(slash ? slash + 1 : path, sizeof path - 256, "%s", name);
    return fopen(path, "r");
}

static int alive(int pid)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/%d", pid);
    return access(path, F_OK) == 0;
}

static int load(void)
{
    char pids[256];
    unsigned line = 0;
    FILE *file = beside("gpus");
    if (!file)
        return DRIVER_NOT_LOADED;
    count = 0;
    while (count < MAX_GPUS) {
        struct gpu *gpu = &gpus[count];
        memset(gpu, 0, sizeof *gpu);
        if (fscanf(file, "%79s %15s %255s %u", gpu->uuid, gpu->state, pids, &gpu->used_mib) != 4)
            break;
        unsigned named = 0;
        for (char *part = strtok(pids, ","); part && gpu->count < MAX_PIDS; part = strtok(NULL, ","))
            if (atoi(part) > 0 && ++named && alive(atoi(part)))
                gpu->pids[gpu->count++] = (unsigned)atoi(part);
        /* The driver gives memory back when the last process has ended. */
        if (named && !gpu->count)
            gpu->used_mib = 0;
        gpu->bus = ++line;
        if (strcmp(gpu->state, "gone") != 0)
            count++;
    }
    fclose(file);
    return OK;
}

static int is(const struct gpu *gpu, const char *state) { return strcmp(gpu->state, state) == 0; }

int nvmlInitWithFlags(unsigned flags) { (void)flags; return load(); }
int nvmlInit_v2(void) { return load(); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == GPU_IS_LOST ? "GPU is lost" : "error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size)
{
    char version[32] = "570.00";
    FILE *file = beside("driver");
    if (file && fscanf(file, "%31s", version) != 1)
        version[0] = 0;
    if (file)
        fclose(file);
    snprintf(text, size, "%s", version);
    return OK;
}

int nvmlSystemGetCudaDriverVersion(int *version) { *version = 12080; return OK; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 12080; return OK; }

int nvmlDeviceGetCount_v2(unsigned *found)
{
    int code = load();
    *found = count;
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct gpu **handle)
{
    if (is(&gpus[index], "fallen"))
        return GPU_IS_LOST;
    *handle = &gpus[index];
    return OK;
}

int nvmlDeviceGetUUID(struct gpu *gpu, char *text, unsigned size)
{
    snprintf(text, size, "%s", gpu->uuid);
    return OK;
}

int nvmlDeviceGetName(struct gpu *gpu, char *text, unsigned size)
{
    (void)gpu;
    snprintf(text, size, "NVIDIA H100 80GB HBM3");
    return OK;
}

int nvmlDeviceGetPciInfo_v3(struct gpu *gpu, struct pci *pci)
{
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", gpu->bus);
    return OK;
}

int nvmlDeviceGetMemoryInfo(struct gpu *gpu, struct memory *memory)
{
    if (is(gpu, "hangs"))
        for (;;)
            pause();
    if (is(gpu, "lost"))
        return GPU_IS_LOST;
    memory->total = 81559ULL << 20;
    memory->used = (unsigned long long)gpu->used_mib << 20;
    memory->free = memory->total - memory->used;
    return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(struct gpu *gpu, unsigned *found, struct process *list)
{
    if (*found < gpu->count) {
        *found = gpu->count;
        return gpu->count ? TOO_SMALL : OK;
    }
    for (unsigned i = 0; i < gpu->count; i++) {
        memset(&list[i], 0, sizeof list[i]);
        list[i].pid = gpu->pids[i];
        list[i].used = (unsigned long long)gpu->used_mib << 20;
    }
    *found = gpu->count;
    return OK;
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(struct gpu *gpu, unsigned *found, struct process *list)
{
    (void)gpu, (void)found, (void)list;
    return NOT_SUPPORTED;
}

int nvmlDeviceGetTotalEccErrors(struct gpu *gpu, int type, int counter, unsigned long long *found)
{
    *found = type == 1 && counter == 0 && is(gpu, "ecc") ? 2 : 0;
    return OK;
}

int nvmlDeviceGetFieldValues(struct gpu *gpu, int asked, struct field *values)
{
    char version[32];
    nvmlSystemGetDriverVersion(version, sizeof version);
    for (int i = 0; i < asked; i++) {
        int known = values[i].id == RECOVERY_ACTION && atoi(version) >= 565;
        values[i].code = known ? OK : NOT_SUPPORTED;
        values[i].type = UNSIGNED;
        values[i].value.number = is(gpu, "reset") ? 1 : is(gpu, "reboot") ? 2 : 0;
    }
    return OK;
}

int nvmlDeviceGetRemappedRows(struct gpu *gpu, unsigned *correctable, unsigned *uncorrectable,
                              unsigned *pending, unsigned *failed)
{
    *correctable = *uncorrectable = *failed = 0;
    *pending = is(gpu, "pending");
    return OK;
}

int nvmlDeviceGetRetiredPagesPendingStatus(struct gpu *gpu, int *pending)
{
    *pending = is(gpu, "pending");
    return OK;
}

int nvmlDeviceGetP2PStatus(struct gpu *one, struct gpu *other, int index, int *status)
{
    char groups[MAX_GPUS][16] = {{0}};
    unsigned known = 0;
    FILE *file = beside("links");
    while (file && known < MAX_GPUS && fscanf(file, "%15s", groups[known]) == 1)
        known++;
    if (file)
        fclose(file);
    if (file && strcmp(groups[0], "old") == 0)
        return FUNCTION_NOT_FOUND;
    if (is(one, "lost") || is(other, "lost"))
        return GPU_IS_LOST;
    const char *group = groups[one - gpus];
    int linked = !file || (strcmp(group, "-") != 0 && strcmp(group, groups[other - gpus]) == 0);
    *status = index == P2P_NVLINK && linked ? P2P_OK : P2P_NOT_SUPPORTED;
    return OK;
}

int nvmlDeviceGetCudaComputeCapability(struct gpu *gpu, int *major, int *minor)
{
    (void)gpu;
    *major = 9;
    *minor = 0;
    return OK;
}
