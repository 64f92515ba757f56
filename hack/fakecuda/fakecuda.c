/*
 * A fake libcuda.so.1: the part of the CUDA driver API that kubemend uses, over GPUs that a file describes.
 *
 * Device memory is host memory. A kernel is recognised by its name and computed here in C, with the same arithmetic as its
 * PTX. Each GPU answers right, wrong in one bit, slowly, with an error, or never, as the file named in
 * $KUBEMEND_FAKECUDA_STATE says. Time is that of a clock of the device's own, which only kernels and copies move on: a
 * test's verdict does not depend on the machine's load.
 */
#define _GNU_SOURCE
#include "fakecuda.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define CLOCK_KHZ 1000000
#define BUS_BITS 512
#define NOMINAL_BYTES_PER_SECOND (2.0 * CLOCK_KHZ * 1000.0 * BUS_BITS / 8)
#define SHARE_REACHED 0.8

typedef enum {
	SUCCESS = 0,
	INVALID_VALUE = 1,
	OUT_OF_MEMORY = 2,
	NOT_INITIALIZED = 3,
	NO_DEVICE = 100,
	INVALID_DEVICE = 101,
	INVALID_IMAGE = 200,
	INVALID_CONTEXT = 201,
	NOT_FOUND = 500,
	PEER_ACCESS_ALREADY_ENABLED = 704,
	UNKNOWN = 999,
} result_t;

struct context { /* the primary context of a visible device */
	unsigned int gpu;
	uint64_t allocated;
	double clock; /* seconds */
	unsigned int rounds; /* of the matrix products */
	bool linked[FAKE_GPUS];
};

static struct fake_state *state;
static unsigned int visible_count;
static struct context contexts[FAKE_GPUS];
static struct context *current;

/* ---- the state ---- */

static uint32_t generation(void)
{
	return __atomic_load_n(&state->generation, __ATOMIC_ACQUIRE);
}

/* The start of every call on a GPU: block for as long as the state says, then return its error, if any. */
static result_t enter_on(const struct fake_gpu *gpu, const char *function)
{
	for (;;) {
		uint32_t seen = generation();

		if (strncmp(gpu->hanging, function, FAKE_TEXT))
			break;
		syscall(SYS_futex, &state->generation, FUTEX_WAIT, seen, NULL, NULL, 0);
	}
	return strncmp(gpu->failing, function, FAKE_TEXT) ? SUCCESS : (result_t)gpu->result;
}

static struct fake_gpu *gpu_of(const struct context *context)
{
	return &state->gpus[context->gpu];
}

#define ENTER()                                                        \
	do {                                                           \
		result_t entered;                                      \
                                                                       \
		if (!current)                                          \
			return INVALID_CONTEXT;                        \
		entered = enter_on(gpu_of(current), __func__);         \
		if (entered)                                           \
			return entered;                                \
	} while (0)

static bool map_state(void)
{
	const char *path = getenv("KUBEMEND_FAKECUDA_STATE");
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	void *mapped;

	if (fd < 0)
		return false;
	mapped = mmap(NULL, sizeof(*state), PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (mapped == MAP_FAILED)
		return false;
	state = mapped;
	return state->magic == FAKE_MAGIC && state->size == sizeof(*state);
}

static void uuid_text(const uint8_t *uuid, char *text)
{
	text += sprintf(text, "GPU-");
	for (int i = 0; i < 16; i++)
		text += sprintf(text, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid[i]);
}

/* The visible devices, in the order of CUDA_VISIBLE_DEVICES, which names UUIDs; an unknown one ends the list. */
static void see(void)
{
	char *named = getenv("CUDA_VISIBLE_DEVICES"), *list = named ? strdup(named) : NULL, *rest;

	visible_count = 0;
	if (!named)
		for (unsigned int gpu = 0; gpu < FAKE_GPUS; gpu++)
			if (state->gpus[gpu].present)
				contexts[visible_count++].gpu = gpu;
	for (char *name = list ? strtok_r(list, ",", &rest) : NULL; name; name = strtok_r(NULL, ",", &rest)) {
		unsigned int gpu;
		char text[FAKE_TEXT];

		for (gpu = 0; gpu < FAKE_GPUS; gpu++) {
			uuid_text(state->gpus[gpu].uuid, text);
			if (state->gpus[gpu].present && !strcmp(text, name))
				break;
		}
		if (gpu == FAKE_GPUS)
			break;
		contexts[visible_count++].gpu = gpu;
	}
	free(list);
}

/* ---- wrong answers ---- */

static bool is_wrong(const struct context *context, enum fake_wrong wrong)
{
	return gpu_of(context)->wrong == (uint32_t)wrong;
}

static void flip_bit(void *memory, size_t size)
{
	((uint8_t *)memory)[size / 2] ^= 0x10;
}

static void pass_time(struct context *context, double bytes)
{
	uint32_t slowness = gpu_of(context)->slowness;

	context->clock += bytes / (NOMINAL_BYTES_PER_SECOND * SHARE_REACHED) * (slowness ? slowness : 1);
}

/* ---- kernels ---- */

static uint64_t pattern(uint64_t i, uint64_t seed, uint64_t flip)
{
	uint64_t x = (i + seed) * 0x9E3779B97F4A7C15u;

	x ^= x >> 29;
	x *= 0xBF58476D1CE4E5B9u;
	return x ^ (x >> 32) ^ flip;
}

static void note(uint64_t *record, uint64_t i, uint64_t got, uint64_t expected)
{
	if (got == expected)
		return;
	if (record[1]++ == 0) {
		record[2] = i;
		record[3] = got;
		record[4] = expected;
	}
}

static float number(uint32_t word)
{
	return (float)((int32_t)(word & 0xFFFFFF) - 0x800000) * 0x1p-23f;
}

static void product(bool of_floats, const uint32_t *a, const uint32_t *b, void *c, uint32_t n, uint32_t k)
{
	for (uint32_t element = 0; element < n * n; element++) {
		const uint32_t *x = a + (size_t)(element / n) * k, *y = b + element % n;
		float sum = 0;
		uint32_t whole = 0;

		for (uint32_t each = 0; each < k; each++, x++, y += n) {
			if (of_floats)
				sum = fmaf(number(*x), number(*y), sum);
			else
				whole += *x * *y;
		}
		if (of_floats)
			((float *)c)[element] = sum;
		else
			((uint32_t *)c)[element] = whole;
	}
}

/* The half-precision bits of a small integer, and back. */
static uint16_t to_half(int value)
{
	unsigned int size = (unsigned int)abs(value), exponent = 0;

	if (!value)
		return 0;
	while (size >> (exponent + 1))
		exponent++;
	return (uint16_t)((value < 0) << 15 | (exponent + 15) << 10 | ((size << (10 - exponent)) & 0x3FF));
}

static int from_half(uint16_t half)
{
	int exponent = (half >> 10 & 31) - 15, size;

	if (!(half & 0x7FFF))
		return 0;
	size = ((half & 0x3FF) | 0x400) >> (10 - exponent);
	return half >> 15 ? -size : size;
}

static void tensor_product(const uint16_t *a, const uint16_t *b, float *c, uint32_t n, uint32_t k)
{
	for (uint32_t element = 0; element < n * n; element++) {
		const uint16_t *x = a + (size_t)(element / n) * k, *y = b + element % n;
		int sum = 0;

		for (uint32_t each = 0; each < k; each++, x++, y += n)
			sum += from_half(*x) * from_half(*y);
		c[element] = (float)sum;
	}
}

#define U64(n) (*(uint64_t *)arguments[n])
#define U32(n) (*(uint32_t *)arguments[n])
#define MEMORY(n) ((void *)(uintptr_t)U64(n))

static void run(struct context *context, const char *name, void **arguments)
{
	uint64_t *memory = MEMORY(0);

	if (!strcmp(name, "kubemend_fill")) {
		for (uint64_t i = 0; i < U64(1); i++)
			memory[i] = pattern(i, U64(2), U64(3));
		/* the matrices are small: only the memory test fills so much */
		if (is_wrong(context, WRONG_MEMORY) && U64(1) >= 1 << 20)
			flip_bit(memory, 8 * U64(1));
		pass_time(context, 8.0 * (double)U64(1));
	} else if (!strcmp(name, "kubemend_check")) {
		for (uint64_t i = 0; i < U64(1); i++)
			note(MEMORY(4), i, memory[i], pattern(i, U64(2), U64(3)));
		((uint64_t *)MEMORY(4))[0] += U64(1);
		pass_time(context, 8.0 * (double)U64(1));
	} else if (!strcmp(name, "kubemend_compare")) {
		const uint64_t *expected = MEMORY(1);

		for (uint64_t i = 0; i < U64(2); i++)
			note(MEMORY(3), i, memory[i], expected[i]);
		((uint64_t *)MEMORY(3))[0] += U64(2);
		pass_time(context, 16.0 * (double)U64(2));
	} else if (!strcmp(name, "kubemend_to_halves")) {
		uint16_t *numbers = MEMORY(0);

		for (uint64_t i = 0; i < 4 * U64(1); i++)
			numbers[i] = to_half((numbers[i] & 31) - 16);
		pass_time(context, 16.0 * (double)U64(1));
	} else if (!strcmp(name, "kubemend_product_f16")) {
		tensor_product(MEMORY(0), MEMORY(1), MEMORY(2), U32(3), U32(4));
		if (is_wrong(context, WRONG_TENSOR) && context->rounds++ % 8 == 5)
			flip_bit(MEMORY(2), 4 * (size_t)U32(3) * U32(3));
		pass_time(context, 4.0 * U32(3) * U32(3));
	} else {
		bool of_floats = !strcmp(name, "kubemend_product_f32");
		bool again = context->rounds++ % 8 == 5;

		product(of_floats, MEMORY(0), MEMORY(1), MEMORY(2), U32(3), U32(4));
		if (is_wrong(context, of_floats ? WRONG_FLOAT : WRONG_INTEGER) && again)
			flip_bit(MEMORY(2), 4 * (size_t)U32(3) * U32(3));
		if (is_wrong(context, WRONG_FLOAT_ALWAYS) && of_floats)
			for (uint32_t element = 0; element < U32(3) * U32(3); element++)
				((uint32_t *)MEMORY(2))[element] ^= 1;
		pass_time(context, 4.0 * U32(3) * U32(3));
	}
}

/* ---- the driver API ---- */

EXPORT result_t cuInit(unsigned int flags)
{
	if (flags || !map_state())
		return UNKNOWN;
	see();
	if (!visible_count)
		return NO_DEVICE;
	return enter_on(gpu_of(&contexts[0]), __func__);
}

EXPORT result_t cuGetErrorName(result_t code, const char **name)
{
	static const struct {
		result_t code;
		const char *name;
	} names[] = {
		{OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
		{NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
		{INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE"},
		{214, "CUDA_ERROR_ECC_UNCORRECTABLE"},
		{719, "CUDA_ERROR_LAUNCH_FAILED"},
		{UNKNOWN, "CUDA_ERROR_UNKNOWN"},
	};

	*name = NULL;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (names[i].code == code)
			*name = names[i].name;
	return *name ? SUCCESS : INVALID_VALUE;
}

EXPORT result_t cuDeviceGet(int *device, int index)
{
	if (!visible_count)
		return NOT_INITIALIZED;
	if (index < 0 || (unsigned int)index >= visible_count)
		return INVALID_DEVICE;
	*device = index;
	return enter_on(gpu_of(&contexts[index]), __func__);
}

EXPORT result_t cuDeviceGetUuid_v2(uint8_t *uuid, int device)
{
	const struct fake_gpu *gpu = gpu_of(&contexts[device]);

	memcpy(uuid, gpu->uuid, 16);
	uuid[0] ^= gpu->instance ? 0xFF : 0;
	return SUCCESS;
}

EXPORT result_t cuDeviceGetAttribute(int *value, int attribute, int device)
{
	switch (attribute) {
	case 16:
		*value = 1; /* multiprocessors */
		return SUCCESS;
	case 20:
		*value = (int)gpu_of(&contexts[device])->compute_mode;
		return SUCCESS;
	case 36:
		*value = CLOCK_KHZ;
		return SUCCESS;
	case 37:
		*value = BUS_BITS;
		return SUCCESS;
	default:
		return INVALID_VALUE;
	}
}

EXPORT result_t cuDevicePrimaryCtxRetain(struct context **context, int device)
{
	*context = &contexts[device];
	return enter_on(gpu_of(*context), __func__);
}

EXPORT result_t cuDevicePrimaryCtxRelease_v2(int device)
{
	contexts[device].allocated = 0;
	memset(contexts[device].linked, 0, sizeof(contexts[device].linked));
	return enter_on(gpu_of(&contexts[device]), __func__);
}

EXPORT result_t cuCtxSetCurrent(struct context *context)
{
	current = context;
	ENTER();
	return SUCCESS;
}

EXPORT result_t cuCtxSynchronize(void)
{
	ENTER();
	return SUCCESS;
}

EXPORT result_t cuModuleLoadData(void **module, const void *image)
{
	ENTER();
	if (strncmp(image, ".version ", strlen(".version ")))
		return INVALID_IMAGE;
	*module = strdup(image);
	return SUCCESS;
}

EXPORT result_t cuModuleGetFunction(char **function, const char *module, const char *name)
{
	char entry[2 * FAKE_TEXT];

	ENTER();
	snprintf(entry, sizeof(entry), ".visible .entry %s(", name);
	if (!strstr(module, entry))
		return NOT_FOUND;
	*function = strdup(name);
	return SUCCESS;
}

EXPORT result_t cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
	const struct fake_gpu *gpu;
	uint64_t used;

	ENTER();
	gpu = gpu_of(current);
	used = gpu->memory_used + current->allocated;
	*free_bytes = gpu->memory_total > used ? gpu->memory_total - used : 0;
	*total = gpu->memory_total;
	return SUCCESS;
}

EXPORT result_t cuMemAlloc_v2(uint64_t *address, size_t size)
{
	size_t *block;

	ENTER();
	if (gpu_of(current)->memory_used + current->allocated + size > gpu_of(current)->memory_total)
		return OUT_OF_MEMORY;
	block = malloc(size + 16);
	if (!block)
		return OUT_OF_MEMORY;
	*block = size;
	current->allocated += size;
	*address = (uintptr_t)block + 16;
	return SUCCESS;
}

EXPORT result_t cuMemFree_v2(uint64_t address)
{
	size_t *block = (size_t *)(uintptr_t)(address - 16);

	ENTER();
	current->allocated -= *block;
	free(block);
	return SUCCESS;
}

EXPORT result_t cuMemAllocHost_v2(void **address, size_t size)
{
	ENTER();
	*address = malloc(size);
	return *address ? SUCCESS : OUT_OF_MEMORY;
}

EXPORT result_t cuMemFreeHost(void *address)
{
	ENTER();
	free(address);
	return SUCCESS;
}

EXPORT result_t cuMemcpyHtoD_v2(uint64_t address, const void *source, size_t size)
{
	static unsigned int copies;

	ENTER();
	memcpy((void *)(uintptr_t)address, source, size);
	if (is_wrong(current, WRONG_TO_DEVICE) && copies++ % 2)
		flip_bit((void *)(uintptr_t)address, size);
	pass_time(current, 10.0 * (double)size);
	return SUCCESS;
}

EXPORT result_t cuMemcpyDtoH_v2(void *target, uint64_t address, size_t size)
{
	ENTER();
	memcpy(target, (const void *)(uintptr_t)address, size);
	if (is_wrong(current, WRONG_TO_HOST) && size >= 1 << 20)
		flip_bit(target, size);
	pass_time(current, 10.0 * (double)size);
	return SUCCESS;
}

EXPORT result_t cuMemsetD8_v2(uint64_t address, uint8_t value, size_t size)
{
	ENTER();
	memset((void *)(uintptr_t)address, value, size);
	return SUCCESS;
}

EXPORT result_t cuLaunchKernel(const char *function, unsigned int blocks_x, unsigned int blocks_y, unsigned int blocks_z,
			       unsigned int threads_x, unsigned int threads_y, unsigned int threads_z,
			       unsigned int shared, void *stream, void **arguments, void **extra)
{
	ENTER();
	if (!blocks_x || blocks_y != 1 || blocks_z != 1 || !threads_x || threads_y != 1 || threads_z != 1 || shared ||
	    stream || extra)
		return INVALID_VALUE;
	if (is_wrong(current, WRONG_END))
		_exit(3);
	if (!is_wrong(current, WRONG_IDLE))
		run(current, function, arguments);
	return SUCCESS;
}

EXPORT result_t cuEventCreate(double **event, unsigned int flags)
{
	ENTER();
	*event = calloc(1, sizeof(**event));
	return flags || !*event ? INVALID_VALUE : SUCCESS;
}

EXPORT result_t cuEventRecord(double *event, void *stream)
{
	ENTER();
	*event = current->clock;
	return stream ? INVALID_VALUE : SUCCESS;
}

EXPORT result_t cuEventSynchronize(double *event)
{
	ENTER();
	return event ? SUCCESS : INVALID_VALUE;
}

EXPORT result_t cuEventElapsedTime(float *milliseconds, const double *from, const double *to)
{
	ENTER();
	*milliseconds = (float)((*to - *from) * 1000);
	return SUCCESS;
}

EXPORT result_t cuDeviceCanAccessPeer(int *able, int device, int peer)
{
	*able = gpu_of(&contexts[device])->peers && gpu_of(&contexts[peer])->peers;
	return SUCCESS;
}

EXPORT result_t cuCtxEnablePeerAccess(struct context *peer, unsigned int flags)
{
	bool *linked;

	ENTER();
	linked = &current->linked[peer->gpu];
	if (flags || peer == current)
		return INVALID_VALUE;
	if (*linked)
		return PEER_ACCESS_ALREADY_ENABLED;
	*linked = true;
	return SUCCESS;
}

EXPORT result_t cuMemcpyPeer(uint64_t target, struct context *to, uint64_t source, struct context *from, size_t size)
{
	ENTER();
	memcpy((void *)(uintptr_t)target, (const void *)(uintptr_t)source, size);
	if (is_wrong(from, WRONG_FROM_PEER))
		flip_bit((void *)(uintptr_t)target, size);
	pass_time(to, 4.0 * (double)size);
	return SUCCESS;
}
