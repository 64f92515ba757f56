/*
 * A fake libnvidia-ml.so.1: the part of NVML's ABI that kubemend uses, for GPUs that a file describes.
 *
 * The real pynvml loads it through LD_LIBRARY_PATH. Faults are switched from outside while a client runs, by
 * changing the file named in $KUBEMEND_FAKENVML_STATE; a futex in that file wakes waiting and hanging calls. As with
 * the real NVML, some changes show only after a new nvmlInit: a GPU added later is not listed, and a lost GPU stays
 * lost. For missing functions pynvml raises FunctionNotFound, as with an old driver; built with -DOLD_DRIVER it lacks
 * those that drivers before R535 lack.
 */
#define _GNU_SOURCE
#include "fakenvml.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define SETS 16
#define NO_INSTANCE 0xFFFFFFFFu
#define SLOWDOWN_MARGIN (-2) /* the margin at which the hardware slows an H100 down */

typedef enum {
	SUCCESS = 0,
	UNINITIALIZED = 1,
	INVALID_ARGUMENT = 2,
	NOT_SUPPORTED = 3,
	NOT_FOUND = 6,
	INSUFFICIENT_SIZE = 7,
	DRIVER_NOT_LOADED = 9,
	TIMEOUT = 10,
	GPU_IS_LOST = 15,
	RESET_REQUIRED = 16,
	OPERATING_SYSTEM = 17,
	VERSION_MISMATCH = 18,
	INSUFFICIENT_RESOURCES = 23,
	ARGUMENT_VERSION_MISMATCH = 25,
	UNKNOWN = 999,
} result_t;

enum {
	CLOCK_SM = 1,
	LOCATION_DRAM = 2,
	LOCATION_SRAM = 7,
	THRESHOLD_SLOWDOWN = 1,
	THRESHOLD_MEMORY_MAX = 2,
	TYPE_UNSIGNED_LONG_LONG = 3,
	EVENT_CLOCK = 0x10,
	SRAM_STATUS_V1 = 0x1000068,
	FABRIC_V2 = 0x2000024,
	FABRIC_V3 = 0x3000028,
};

/* NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, _ERROR_DL_RECOVERY, _COUNT_RCV_ERRORS, _COUNT_LINK_RECOVERY_EVENTS */
static const unsigned int link_field_ids[FAKE_LINK_COUNTERS] = {161, 162, 208, 215};

struct handle { /* what an nvmlDevice_t points to */
	unsigned int gpu;
	int mig; /* -1: the whole GPU */
};

typedef struct handle *device_t;

struct event_set { /* what an nvmlEventSet_t points to */
	bool used;
	uint32_t cursor;
	struct timespec clocks_change; /* when the next clock event comes */
	uint64_t masks[FAKE_GPUS];
};

struct pci_info {
	char bus_id_legacy[16];
	unsigned int domain, bus, device, pci_device_id, pci_subsystem_id;
	char bus_id[32];
};

struct memory {
	unsigned long long total, free, used;
};

struct memory_v2 {
	unsigned int version;
	unsigned long long total, reserved, free, used;
};

struct process_info {
	unsigned int pid;
	unsigned long long used;
	unsigned int gpu_instance, compute_instance;
};

struct field_value {
	unsigned int id, scope;
	long long timestamp, latency_usec;
	unsigned int type, result;
	unsigned long long value;
};

struct utilization {
	unsigned int gpu, memory;
};

struct margin {
	unsigned int version;
	int margin;
};

struct sram_status {
	unsigned int version;
	unsigned long long aggregate[3], volatiles[3], buckets[5];
	unsigned int threshold_exceeded;
};

struct fabric_info {
	unsigned int version;
	unsigned char cluster[16];
	unsigned int status, clique;
	unsigned char state;
	unsigned int mask;
	unsigned char summary; /* from version 3 on */
};

struct event_data {
	device_t device;
	unsigned long long type, data;
	unsigned int gpu_instance, compute_instance;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fake_state *state;
static unsigned int references;
static unsigned int visible_count;
static unsigned int visible[FAKE_GPUS]; /* NVML index -> GPU of the state, as it was at nvmlInit */
static bool was_lost[FAKE_GPUS];        /* latched until the next nvmlInit */
static bool lost_at_init[FAKE_GPUS];
static struct handle handles[FAKE_GPUS][FAKE_MIGS + 1]; /* [gpu][0] the GPU, [gpu][1 + n] its MIG devices */
static struct event_set sets[SETS];

/* ---- waiting on the state ---- */

static uint32_t generation(void)
{
	return __atomic_load_n(&state->generation, __ATOMIC_ACQUIRE);
}

static void wait_for_change(uint32_t seen, const struct timespec *timeout)
{
	syscall(SYS_futex, &state->generation, FUTEX_WAIT, seen, timeout, NULL, 0);
}

static void sleep_ms(unsigned int ms)
{
	struct timespec left = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};

	while (nanosleep(&left, &left) != 0 && errno == EINTR)
		;
}

/* Use the processor for so long, as a call that talks to a real driver does. */
static void work_us(unsigned int us)
{
	struct timespec begin, now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
	do
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	while ((now.tv_sec - begin.tv_sec) * 1000000 + (now.tv_nsec - begin.tv_nsec) / 1000 < (long)us);
}

/* Block for as long as `group` hangs, on the whole node or on this GPU (NULL: none in particular). */
static void pass(unsigned int group, const struct fake_gpu *gpu)
{
	for (;;) {
		uint32_t seen = generation();

		if (!((state->hang_groups | (gpu ? gpu->hang_groups : 0)) & group))
			break;
		wait_for_change(seen, NULL);
	}
}

/* The start of every call: hang, then delay and work, as the state requires for this group of functions. */
static void arrive(unsigned int group)
{
	pass(group, NULL);
	if (state->slow_groups & group)
		sleep_ms(state->slow_ms);
	if (group == GROUP_GETTERS && state->call_cost_us)
		work_us(state->call_cost_us);
}

static result_t driver_result(void)
{
	switch (state->driver) {
	case DRIVER_ABSENT:
		return DRIVER_NOT_LOADED;
	case DRIVER_MISMATCH:
		return VERSION_MISMATCH;
	default:
		return SUCCESS;
	}
}

static result_t enter(unsigned int group)
{
	if (__atomic_load_n(&references, __ATOMIC_ACQUIRE) == 0)
		return UNINITIALIZED;
	arrive(group);
	return driver_result();
}

/* ---- devices ---- */

static bool is_handle(const struct handle *device)
{
	const struct handle *first = &handles[0][0];

	return device >= first && device < first + FAKE_GPUS * (FAKE_MIGS + 1);
}

static result_t gpu_result(unsigned int gpu)
{
	const struct fake_gpu *it = &state->gpus[gpu];

	if (it->fault == FAULT_LOST || !it->present)
		was_lost[gpu] = true;
	if (lost_at_init[gpu] || it->fault == FAULT_UNKNOWN)
		return UNKNOWN;
	if (was_lost[gpu])
		return GPU_IS_LOST;
	return it->fault == FAULT_RESET_REQUIRED ? RESET_REQUIRED : SUCCESS;
}

static result_t injected_error(const struct fake_gpu *gpu, const char *function)
{
	for (unsigned int n = 0; n < FAKE_ERRORS; n++)
		if (strcmp(gpu->errors[n].function, function) == 0)
			return gpu->errors[n].result;
	return SUCCESS;
}

/* The common start of every getter: hang, driver, handle, device faults and errors of this function, in this order. */
static result_t open_device(device_t device, struct fake_gpu **gpu, const char *function)
{
	result_t result = enter(GROUP_GETTERS);

	if (result != SUCCESS)
		return result;
	if (!is_handle(device))
		return INVALID_ARGUMENT;
	*gpu = &state->gpus[device->gpu];
	pass(GROUP_GETTERS, *gpu);
	result = gpu_result(device->gpu);
	return result == SUCCESS ? injected_error(*gpu, function) : result;
}

static result_t open_whole(device_t device, struct fake_gpu **gpu, const char *function)
{
	result_t result = open_device(device, gpu, function);

	return result == SUCCESS && device->mig >= 0 ? NOT_SUPPORTED : result;
}

static result_t open_mig(device_t device, struct fake_gpu **gpu, struct fake_mig **mig, const char *function)
{
	result_t result = open_device(device, gpu, function);

	if (result != SUCCESS)
		return result;
	if (device->mig < 0)
		return INVALID_ARGUMENT;
	*mig = &(*gpu)->migs[device->mig];
	return (*mig)->present ? SUCCESS : NOT_FOUND;
}

static result_t copy_text(const char *text, char *out, unsigned int length)
{
	if (strlen(text) >= length)
		return INSUFFICIENT_SIZE;
	memcpy(out, text, strlen(text) + 1);
	return SUCCESS;
}

static void format_bus_id(const struct fake_gpu *gpu, char *out, size_t size)
{
	snprintf(out, size, "%08X:%02X:%02X.0", gpu->domain, gpu->bus & 0xFF, gpu->device & 0xFF);
}

/* ---- initialisation ---- */

static bool map_state(void)
{
	const char *path = getenv("KUBEMEND_FAKENVML_STATE");
	struct stat info;
	struct fake_state *map;
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;

	if (state)
		return true;
	if (fd < 0 || fstat(fd, &info) != 0 || info.st_size != (off_t)sizeof(*map)) {
		fprintf(stderr, "fakenvml: KUBEMEND_FAKENVML_STATE names no state file of this version\n");
		if (fd >= 0)
			close(fd);
		return false;
	}
	map = mmap(NULL, sizeof(*map), PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (map == MAP_FAILED || map->magic != FAKE_MAGIC || map->version != FAKE_VERSION)
		return false;
	state = map;
	return true;
}

static void enumerate(void)
{
	visible_count = 0;
	for (unsigned int gpu = 0; gpu < FAKE_GPUS; gpu++) {
		was_lost[gpu] = false;
		lost_at_init[gpu] = state->gpus[gpu].fault == FAULT_LOST;
		for (int mig = -1; mig < FAKE_MIGS; mig++)
			handles[gpu][mig + 1] = (struct handle){.gpu = gpu, .mig = mig};
		if (state->gpus[gpu].present)
			visible[visible_count++] = gpu;
	}
	memset(sets, 0, sizeof(sets));
}

EXPORT result_t nvmlInitWithFlags(unsigned int flags)
{
	result_t result = SUCCESS;

	(void)flags;
	pthread_mutex_lock(&lock);
	if (!map_state())
		result = OPERATING_SYSTEM;
	pthread_mutex_unlock(&lock);
	if (result != SUCCESS)
		return result;
	arrive(GROUP_INIT);
	pthread_mutex_lock(&lock);
	result = driver_result();
	if (result == SUCCESS && references == 0)
		enumerate();
	if (result == SUCCESS)
		__atomic_add_fetch(&references, 1, __ATOMIC_ACQ_REL);
	pthread_mutex_unlock(&lock);
	return result;
}

EXPORT result_t nvmlInit_v2(void)
{
	return nvmlInitWithFlags(0);
}

EXPORT result_t nvmlShutdown(void)
{
	result_t result = UNINITIALIZED;

	pthread_mutex_lock(&lock);
	if (references > 0) {
		__atomic_sub_fetch(&references, 1, __ATOMIC_ACQ_REL);
		result = SUCCESS;
	}
	pthread_mutex_unlock(&lock);
	return result;
}

EXPORT const char *nvmlErrorString(result_t result)
{
	switch (result) {
	case SUCCESS:
		return "The operation was successful";
	case GPU_IS_LOST:
		return "GPU is lost";
	case RESET_REQUIRED:
		return "GPU requires reset";
	default:
		return "Fake NVML error";
	}
}

/* ---- the system ---- */

EXPORT result_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	result_t result = enter(GROUP_GETTERS);

	return result == SUCCESS ? copy_text(state->driver_version, version, length) : result;
}

EXPORT result_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
	char text[FAKE_TEXT + 4];
	result_t result = enter(GROUP_GETTERS);

	if (result != SUCCESS)
		return result;
	snprintf(text, sizeof(text), "13.%s", state->driver_version);
	return copy_text(text, version, length);
}

EXPORT result_t nvmlSystemGetCudaDriverVersion(int *version)
{
	result_t result = enter(GROUP_GETTERS);

	if (result == SUCCESS)
		*version = (int)state->cuda_version;
	return result;
}

EXPORT result_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	return nvmlSystemGetCudaDriverVersion(version);
}

/* ---- handles ---- */

static result_t give_handle(unsigned int gpu, int mig, device_t *device)
{
	result_t result;

	pass(GROUP_HANDLES, &state->gpus[gpu]);
	result = gpu_result(gpu);
	if (result == SUCCESS)
		*device = &handles[gpu][mig + 1];
	return result;
}

EXPORT result_t nvmlDeviceGetCount_v2(unsigned int *count)
{
	result_t result = enter(GROUP_HANDLES);

	if (result == SUCCESS)
		*count = visible_count;
	return result;
}

EXPORT result_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, device_t *device)
{
	result_t result = enter(GROUP_HANDLES);

	if (result != SUCCESS)
		return result;
	return index < visible_count ? give_handle(visible[index], -1, device) : INVALID_ARGUMENT;
}

EXPORT result_t nvmlDeviceGetHandleByUUID(const char *uuid, device_t *device)
{
	result_t result = enter(GROUP_HANDLES);

	for (unsigned int index = 0; result == SUCCESS && index < visible_count; index++) {
		const struct fake_gpu *gpu = &state->gpus[visible[index]];

		if (strcmp(gpu->uuid, uuid) == 0)
			return give_handle(visible[index], -1, device);
		for (int mig = 0; mig < FAKE_MIGS; mig++)
			if (gpu->migs[mig].present && strcmp(gpu->migs[mig].uuid, uuid) == 0)
				return give_handle(visible[index], mig, device);
	}
	return result == SUCCESS ? NOT_FOUND : result;
}

EXPORT result_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, device_t *device)
{
	result_t result = enter(GROUP_HANDLES);
	char text[32];

	for (unsigned int index = 0; result == SUCCESS && index < visible_count; index++) {
		format_bus_id(&state->gpus[visible[index]], text, sizeof(text));
		/* NVML takes a domain of 4 digits as well as one of 8 */
		if (strcasecmp(text, bus_id) == 0 || strcasecmp(text + 4, bus_id) == 0)
			return give_handle(visible[index], -1, device);
	}
	return result == SUCCESS ? NOT_FOUND : result;
}

/* ---- identity ---- */

EXPORT result_t nvmlDeviceGetUUID(device_t device, char *uuid, unsigned int length)
{
	struct fake_gpu *gpu;
	result_t result = open_device(device, &gpu, __func__);

	if (result != SUCCESS)
		return result;
	return copy_text(device->mig < 0 ? gpu->uuid : gpu->migs[device->mig].uuid, uuid, length);
}

EXPORT result_t nvmlDeviceGetName(device_t device, char *name, unsigned int length)
{
	struct fake_gpu *gpu;
	result_t result = open_device(device, &gpu, __func__);

	return result == SUCCESS ? copy_text(gpu->name, name, length) : result;
}

EXPORT result_t nvmlDeviceGetSerial(device_t device, char *serial, unsigned int length)
{
	struct fake_gpu *gpu;
	result_t result = open_whole(device, &gpu, __func__);

	return result == SUCCESS ? copy_text(gpu->serial, serial, length) : result;
}

EXPORT result_t nvmlDeviceGetPciInfo_v3(device_t device, struct pci_info *info)
{
	struct fake_gpu *gpu;
	result_t result = open_device(device, &gpu, __func__);

	if (result != SUCCESS)
		return result;
	memset(info, 0, sizeof(*info));
	info->domain = gpu->domain;
	info->bus = gpu->bus;
	info->device = gpu->device;
	info->pci_device_id = 0x233010DE;
	format_bus_id(gpu, info->bus_id, sizeof(info->bus_id));
	memcpy(info->bus_id_legacy, info->bus_id + 4, 13);
	return SUCCESS;
}

EXPORT result_t nvmlDeviceGetIndex(device_t device, unsigned int *out)
{
	struct fake_gpu *gpu;
	result_t result = open_device(device, &gpu, __func__);

	for (unsigned int index = 0; result == SUCCESS && index < visible_count; index++)
		if (visible[index] == device->gpu)
			*out = index;
	return result;
}

/* Getters of one number of a whole GPU. */
#define GETTER(function, type, expression)                                                                 \
	EXPORT result_t function(device_t device, type *out)                                               \
	{                                                                                                  \
		struct fake_gpu *gpu;                                                                      \
		result_t result = open_whole(device, &gpu, __func__);                                                \
                                                                                                           \
		if (result == SUCCESS)                                                                     \
			*out = (expression);                                                               \
		return result;                                                                             \
	}

GETTER(nvmlDeviceGetMinorNumber, unsigned int, gpu->minor)
GETTER(nvmlDeviceGetPersistenceMode, unsigned int, gpu->persistence)
GETTER(nvmlDeviceGetPowerUsage, unsigned int, gpu->power_mw)
GETTER(nvmlDeviceGetSupportedEventTypes, unsigned long long, gpu->supported_events)
GETTER(nvmlDeviceGetPerformanceState, unsigned int, gpu->pstate)
GETTER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, gpu->pcie_generation)
GETTER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, gpu->pcie_generation_max)
GETTER(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, gpu->pcie_width)
GETTER(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, gpu->pcie_width_max)
GETTER(nvmlDeviceGetPcieReplayCounter, unsigned int, gpu->pcie_replays)
GETTER(nvmlDeviceGetRetiredPagesPendingStatus, unsigned int, gpu->retirement_pending)
#ifndef OLD_DRIVER
GETTER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, gpu->clocks_event_reasons)
#endif

/* ---- health ---- */

EXPORT result_t nvmlDeviceGetTemperature(device_t device, unsigned int sensor, unsigned int *out)
{
	struct fake_gpu *gpu;
	result_t result = open_whole(device, &gpu, __func__);

	if (result != SUCCESS)
		return result;
	if (sensor != 0)
		return INVALID_ARGUMENT;
	*out = gpu->temperature;
	return SUCCESS;
}

EXPORT result_t nvmlDeviceGetTemperatureThreshold(device_t device, unsigned int threshold, unsigned int *out)
{
	struct fake_gpu *gpu;
	result_t result = open_whole(device, &gpu, __func__);

	if (result != SUCCESS)
		return result;
	if (threshold != THRESHOLD_SLOWDOWN && threshold != THRESHOLD_MEMORY_MAX)
		return NOT_SUPPORTED;
	*out = threshold == THRESHOLD_SLOWDOWN ? gpu->slowdown_temperature : gpu->memory_max_temperature;
	return *out ? SUCCESS : NOT_SUPPORTED;
}

EXPORT result_t nvmlDeviceGetUtilizationRates(device_t device, struct utilization *out)
{
	struct fake_gpu *gpu;
	result_t result = open_whole(device, &gpu, __func__);

	if (result != SUCCESS)
		return result;
	if (gpu->mig_mode)
		return NOT_SUPPORTED;
	*out = (struct utilization){.gpu = gpu->utilization, .memory = gpu->utilization / 2};
	return SUCCESS;
}

static result_t read_clock(device_t device, unsigned int type, unsigned int *out, bool max, const char *function)
{
	struct fake_gpu *gpu;
	result_t result = open_whole(device, &gpu, function);

	if (result != SUCCESS)
		return result;
	if (type != CLOCK_SM)
		return NOT_SUPPORTED;
	*out = max ? gpu->sm_clock_max : gpu->sm_clock;
	return SUCCESS;
}

EXPORT result_t nvmlDeviceGetClockInfo(device_t device, unsigned int type, unsigned int *out)
{
	return read_clock(device, type, out, false, __func__);
}

EXPORT result_t nvmlDeviceGetMaxClockInfo(device_t device, unsigned int type, unsigned int *out)
{
	return read_clock(device, type, out, true, __func__);
}

#ifndef OLD_DRIVER
EXPORT result_t nvmlDeviceGetMarginTemperature(device_t device, struct margin *out)
{
	struct fake_gpu *gpu;
	result_t result = open_whole(device, &gpu, __func__);

	if (result == SUCCESS)
		out->margin = (int)gpu->slowdown_temperature + SLOWDOWN_MARGIN - (int)gpu->temperature;
	return result;
}
#endif

static result_t read_memory(device_t device, struct memory *out, const char *function)
{
	struct fake_gpu *gpu;
	result_t result = open_device(device, &gpu, function);

	if (result != SUCCESS)
		return result;
	out->total = gpu->memory_total;
	out->used = gpu->memory_used;
	if (device->mig >= 0) {
		const struct fake_mig *mig = &gpu->migs[device->mig];

		out->total = mig->memory_total;
		out->used = 0;
		for (unsigned int n = 0; n < gpu->process_count; n++)
			if (gpu->processes[n].gpu_instance == mig->gpu_instance && gpu->processes[n].used != ~0ull)
				out->used += gpu->processes[n].used;
	}
	out->free = out->total - out->used;
	return SUCCESS;
}

EXPORT result_t nvmlDeviceGetMemoryInfo(device_t device, struct memory *out)
{
	return read_memory(device, out, __func__);
}

EXPORT result_t nvmlDeviceGetMemoryInfo_v2(device_t device, struct memory_v2 *out)
{
	struct memory memory;
	result_t result = read_memory(device, &memory, __func__);

	if (result != SUCCESS)
		return result;
	out->total = memory.total;
	out->reserved = 0;
	out->free = memory.free;
	out->used = memory.used;
	return SUCCESS;
}

static result_t list_processes(device_t device, enum fake_kind kind, unsigned int *count, struct process_info *out,
                               const char *function)
{
	struct fake_gpu *gpu;
	unsigned int found = 0, room = *count;
	result_t result = open_device(device, &gpu, function);

	for (unsigned int n = 0; result == SUCCESS && n < gpu->process_count; n++) {
		const struct fake_process *process = &gpu->processes[n];

		if (process->kind != kind)
			continue;
		if (device->mig >= 0 && gpu->migs[device->mig].gpu_instance != process->gpu_instance)
			continue;
		if (found < room && out)
			out[found] = (struct process_info){process->pid, process->used, process->gpu_instance,
			                                   process->compute_instance};
		found++;
	}
	if (result != SUCCESS)
		return result;
	*count = found;
	return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

EXPORT result_t nvmlDeviceGetComputeRunningProcesses_v3(device_t device, unsigned int *count,
                                                        struct process_info *out)
{
	return list_processes(device, KIND_COMPUTE, count, out, __func__);
}

EXPORT result_t nvmlDeviceGetGraphicsRunningProcesses_v3(device_t device, unsigned int *count,
                                                         struct process_info *out)
{
	return list_processes(device, KIND_GRAPHICS, count, out, __func__);
}

EXPORT result_t nvmlDeviceGetMPSComputeRunningProcesses_v3(device_t device, unsigned int *count,
                                                           struct process_info *out)
{
	return list_processes(device, KIND_MPS, count, out, __func__);
}

static void read_link_field(const struct fake_gpu *gpu, struct field_value *out)
{
	for (unsigned int n = 0; n < FAKE_LINK_COUNTERS; n++) {
		if (link_field_ids[n] != out->id || out->scope >= FAKE_LINKS || !gpu->links[out->scope].present)
			continue;
		out->result = gpu->link_results[n];
		out->value = gpu->links[out->scope].counters[n];
	}
}

static void read_field(const struct fake_gpu *gpu, struct field_value *out)
{
	out->result = NOT_SUPPORTED;
	out->type = TYPE_UNSIGNED_LONG_LONG;
	read_link_field(gpu, out);
	for (unsigned int n = 0; n < FAKE_FIELDS; n++) {
		if (gpu->fields[n].id == out->id && out->id != 0) {
			out->result = gpu->fields[n].result;
			out->type = gpu->fields[n].type;
			out->value = gpu->fields[n].value;
		}
	}
}

EXPORT result_t nvmlDeviceGetFieldValues(device_t device, int count, struct field_value *values)
{
	struct fake_gpu *gpu;
	result_t result = open_whole(device, &gpu, __func__);

	for (int n = 0; result == SUCCESS && n < count; n++)
		read_field(gpu, &values[n]);
	return result;
}

EXPORT result_t nvmlDeviceGetRemappedRows(device_t device, unsigned int *correctable, unsigned int *uncorrectable,
                                          unsigned int *pending, unsigned int *failure)
{
	struct fake_gpu *gpu;
	result_t result = open_whole(device, &gpu, __func__);

	if (result != SUCCESS)
		return result;
	*correctable = gpu->remapped[0];
	*uncorrectable = gpu->remapped[1];
	*pending = gpu->remapped[2];
	*failure = gpu->remapped[3];
	return SUCCESS;
}

EXPORT result_t nvmlDeviceGetTotalEccErrors(device_t device, unsigned int type, unsigned int counter,
                                            unsigned long long *out)
{
	struct fake_gpu *gpu;
	result_t result = open_whole(device, &gpu, __func__);

	if (result != SUCCESS)
		return result;
	if (type > 1 || counter > 1)
		return INVALID_ARGUMENT;
	*out = gpu->ecc_dram[type][counter] + gpu->ecc_sram[type][counter];
	return SUCCESS;
}

EXPORT result_t nvmlDeviceGetMemoryErrorCounter(device_t device, unsigned int type, unsigned int counter,
                                                unsigned int location, unsigned long long *out)
{
	struct fake_gpu *gpu;
	result_t result = open_whole(device, &gpu, __func__);

	if (result != SUCCESS)
		return result;
	if (type > 1 || counter > 1)
		return INVALID_ARGUMENT;
	if (location != LOCATION_DRAM && location != LOCATION_SRAM)
		return NOT_SUPPORTED;
	*out = location == LOCATION_DRAM ? gpu->ecc_dram[type][counter] : gpu->ecc_sram[type][counter];
	return SUCCESS;
}

#ifndef OLD_DRIVER
EXPORT result_t nvmlDeviceGetSramEccErrorStatus(device_t device, struct sram_status *out)
{
	struct fake_gpu *gpu;
	result_t result = open_whole(device, &gpu, __func__);

	if (result != SUCCESS)
		return result;
	if (out->version != SRAM_STATUS_V1)
		return ARGUMENT_VERSION_MISMATCH;
	*out = (struct sram_status){.version = SRAM_STATUS_V1, .threshold_exceeded = gpu->sram_threshold_exceeded};
	return SUCCESS;
}
#endif

/* ---- NVLink and its fabric ---- */

EXPORT result_t nvmlDeviceGetNvLinkState(device_t device, unsigned int link, unsigned int *out)
{
	struct fake_gpu *gpu;
	result_t result = open_whole(device, &gpu, __func__);

	if (result != SUCCESS)
		return result;
	if (link >= FAKE_LINKS)
		return INVALID_ARGUMENT;
	*out = gpu->links[link].active;
	return gpu->links[link].present ? SUCCESS : NOT_SUPPORTED;
}

EXPORT result_t nvmlDeviceGetNvLinkErrorCounter(device_t device, unsigned int link, unsigned int counter,
                                                unsigned long long *out)
{
	struct fake_gpu *gpu;
	result_t result = open_whole(device, &gpu, __func__);

	if (result != SUCCESS)
		return result;
	if (link >= FAKE_LINKS)
		return INVALID_ARGUMENT;
	if (counter > 1 || !gpu->links[link].present)
		return NOT_SUPPORTED;
	*out = gpu->links[link].counters[counter];
	return SUCCESS;
}

#ifndef OLD_DRIVER
EXPORT result_t nvmlDeviceGetGpuFabricInfoV(device_t device, struct fabric_info *out)
{
	struct fake_gpu *gpu;
	result_t result = open_whole(device, &gpu, __func__);

	if (result != SUCCESS)
		return result;
	if (out->version != FABRIC_V2 && out->version != FABRIC_V3)
		return ARGUMENT_VERSION_MISMATCH;
	out->status = gpu->fabric_status;
	out->clique = 0;
	out->state = gpu->fabric_state;
	out->mask = gpu->fabric_mask;
	if (out->version == FABRIC_V3)
		out->summary = (unsigned char)gpu->fabric_summary;
	return SUCCESS;
}
#endif

/* ---- MIG ---- */

EXPORT result_t nvmlDeviceGetMigMode(device_t device, unsigned int *current, unsigned int *pending)
{
	struct fake_gpu *gpu;
	result_t result = open_whole(device, &gpu, __func__);

	if (result == SUCCESS)
		*current = *pending = gpu->mig_mode;
	return result;
}

EXPORT result_t nvmlDeviceGetMaxMigDeviceCount(device_t device, unsigned int *count)
{
	struct fake_gpu *gpu;
	result_t result = open_whole(device, &gpu, __func__);

	if (result == SUCCESS)
		*count = FAKE_MIGS;
	return result;
}

EXPORT result_t nvmlDeviceGetMigDeviceHandleByIndex(device_t device, unsigned int index, device_t *out)
{
	struct fake_gpu *gpu;
	result_t result = open_whole(device, &gpu, __func__);

	if (result != SUCCESS)
		return result;
	if (index >= FAKE_MIGS)
		return INVALID_ARGUMENT;
	if (!gpu->mig_mode || !gpu->migs[index].present)
		return NOT_FOUND;
	*out = &handles[device->gpu][index + 1];
	return SUCCESS;
}

EXPORT result_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device_t device, device_t *out)
{
	struct fake_gpu *gpu;
	struct fake_mig *mig;
	result_t result = open_mig(device, &gpu, &mig, __func__);

	if (result == SUCCESS)
		*out = &handles[device->gpu][0];
	return result;
}

EXPORT result_t nvmlDeviceGetGpuInstanceId(device_t device, unsigned int *id)
{
	struct fake_gpu *gpu;
	struct fake_mig *mig;
	result_t result = open_mig(device, &gpu, &mig, __func__);

	if (result == SUCCESS)
		*id = mig->gpu_instance;
	return result;
}

EXPORT result_t nvmlDeviceGetComputeInstanceId(device_t device, unsigned int *id)
{
	struct fake_gpu *gpu;
	struct fake_mig *mig;
	result_t result = open_mig(device, &gpu, &mig, __func__);

	if (result == SUCCESS)
		*id = mig->compute_instance;
	return result;
}

EXPORT result_t nvmlDeviceIsMigDeviceHandle(device_t device, unsigned int *is_mig)
{
	result_t result = enter(GROUP_GETTERS);

	if (result != SUCCESS)
		return result;
	if (!is_handle(device))
		return INVALID_ARGUMENT;
	*is_mig = device->mig >= 0;
	return SUCCESS;
}

/* ---- events ---- */

static void in_ms(unsigned int ms, struct timespec *out)
{
	clock_gettime(CLOCK_MONOTONIC, out);
	out->tv_sec += ms / 1000;
	out->tv_nsec += (long)(ms % 1000) * 1000000;
	if (out->tv_nsec >= 1000000000) {
		out->tv_sec++;
		out->tv_nsec -= 1000000000;
	}
}

static bool is_set(const struct event_set *set)
{
	return set >= sets && set < sets + SETS && set->used;
}

EXPORT result_t nvmlEventSetCreate(struct event_set **out)
{
	result_t result = enter(GROUP_HANDLES);

	if (result != SUCCESS)
		return result;
	result = INSUFFICIENT_RESOURCES;
	pthread_mutex_lock(&lock);
	for (unsigned int n = 0; n < SETS && result != SUCCESS; n++) {
		if (sets[n].used)
			continue;
		sets[n] = (struct event_set){.used = true};
		sets[n].cursor = __atomic_load_n(&state->event_head, __ATOMIC_ACQUIRE);
		*out = &sets[n];
		result = SUCCESS;
	}
	pthread_mutex_unlock(&lock);
	return result;
}

EXPORT result_t nvmlEventSetFree(struct event_set *set)
{
	result_t result = enter(GROUP_HANDLES);

	if (result != SUCCESS)
		return result;
	if (!is_set(set))
		return INVALID_ARGUMENT;
	set->used = false;
	return SUCCESS;
}

EXPORT result_t nvmlDeviceRegisterEvents(device_t device, unsigned long long types, struct event_set *set)
{
	struct fake_gpu *gpu;
	result_t result = open_whole(device, &gpu, __func__);

	if (result != SUCCESS)
		return result;
	if (!is_set(set))
		return INVALID_ARGUMENT;
	if (types & ~gpu->supported_events)
		return NOT_SUPPORTED;
	if (types & EVENT_CLOCK)
		in_ms(state->clock_event_ms, &set->clocks_change);
	set->masks[device->gpu] |= types;
	return SUCCESS;
}

/* Move the set's cursor on; true when it passed an event that the set asked for. */
static bool next_event(struct event_set *set, struct event_data *out)
{
	uint32_t head = __atomic_load_n(&state->event_head, __ATOMIC_ACQUIRE);

	if (head - set->cursor > FAKE_EVENTS)
		set->cursor = head - FAKE_EVENTS; /* the oldest are overwritten */
	while (set->cursor != head) {
		const struct fake_event *event = &state->events[set->cursor++ % FAKE_EVENTS];

		if (event->gpu >= FAKE_GPUS || !(set->masks[event->gpu] & event->type))
			continue;
		*out = (struct event_data){&handles[event->gpu][0], event->type, event->data, event->gpu_instance,
		                           event->compute_instance};
		return true;
	}
	return false;
}

static bool has_lost_gpu(const struct event_set *set)
{
	for (unsigned int gpu = 0; gpu < FAKE_GPUS; gpu++)
		if (set->masks[gpu] && gpu_result(gpu) == GPU_IS_LOST)
			return true;
	return false;
}

static result_t wait_error(const struct event_set *set, const char *function)
{
	result_t result = SUCCESS;

	for (unsigned int gpu = 0; gpu < FAKE_GPUS && result == SUCCESS; gpu++)
		if (set->masks[gpu])
			result = injected_error(&state->gpus[gpu], function);
	return result;
}

static bool time_left(const struct timespec *deadline, struct timespec *left)
{
	clock_gettime(CLOCK_MONOTONIC, left);
	left->tv_sec = deadline->tv_sec - left->tv_sec;
	left->tv_nsec = deadline->tv_nsec - left->tv_nsec;
	if (left->tv_nsec < 0) {
		left->tv_sec--;
		left->tv_nsec += 1000000000;
	}
	return left->tv_sec >= 0;
}

/* True when it is time for a clock event; shortens `left` to the time until the next one. */
static bool next_clock_event(struct event_set *set, struct event_data *out, struct timespec *left)
{
	struct timespec until;

	for (unsigned int gpu = 0; state->clock_event_ms && gpu < FAKE_GPUS; gpu++) {
		if (!(set->masks[gpu] & EVENT_CLOCK))
			continue;
		if (!time_left(&set->clocks_change, &until)) {
			in_ms(state->clock_event_ms, &set->clocks_change);
			*out = (struct event_data){&handles[gpu][0], EVENT_CLOCK, 0, NO_INSTANCE, NO_INSTANCE};
			return true;
		}
		if (until.tv_sec < left->tv_sec || (until.tv_sec == left->tv_sec && until.tv_nsec < left->tv_nsec))
			*left = until;
		break;
	}
	return false;
}

EXPORT result_t nvmlEventSetWait_v2(struct event_set *set, struct event_data *data, unsigned int timeout_ms)
{
	struct timespec deadline, left;

	in_ms(timeout_ms, &deadline);
	for (;;) {
		uint32_t seen = state ? generation() : 0;
		result_t result = enter(GROUP_EVENTS);

		if (result != SUCCESS)
			return result;
		if (!is_set(set))
			return INVALID_ARGUMENT;
		result = wait_error(set, __func__);
		if (result != SUCCESS)
			return result;
		if (next_event(set, data))
			return SUCCESS;
		if (has_lost_gpu(set))
			return GPU_IS_LOST;
		if (!time_left(&deadline, &left))
			return TIMEOUT;
		if (next_clock_event(set, data, &left))
			return SUCCESS;
		wait_for_change(seen, &left);
	}
}
