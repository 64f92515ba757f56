/* The state that the fake CUDA driver shares with hack/fakecuda/control.py; hack/fakelibrary.py reads the structures. */
#ifndef FAKECUDA_H
#define FAKECUDA_H

#include <stdint.h>

#define FAKE_MAGIC 0x41445543
#define FAKE_GPUS 16
#define FAKE_TEXT 48

/* What a device does wrong: one bit each time, or no kernel at all although every call succeeds. */
enum fake_wrong {
	WRONG_NOTHING,
	WRONG_MEMORY,
	WRONG_INTEGER,
	WRONG_FLOAT,
	WRONG_FLOAT_ALWAYS, /* the same wrong bit in each round */
	WRONG_TO_DEVICE,
	WRONG_TO_HOST,
	WRONG_FROM_PEER,
	WRONG_IDLE,
	WRONG_TENSOR,
	WRONG_END, /* the process ends in the middle of a test */
};

struct fake_gpu {
	uint8_t uuid[16];
	char hanging[FAKE_TEXT]; /* the function that blocks until it is another one */
	char failing[FAKE_TEXT]; /* the function that returns `result` */
	uint64_t memory_total;
	uint64_t memory_used; /* by others */
	uint32_t result;
	uint32_t wrong;
	uint32_t slowness; /* factor of the time that the device's own clock shows */
	uint32_t compute_mode;
	uint32_t peers; /* can access all others */
	uint32_t present;
	uint32_t instance; /* in its place CUDA shows one of its MIG instances */
};

struct fake_state {
	uint32_t magic;
	uint32_t size;
	uint32_t generation; /* futex word: bumped after every change */
	uint32_t reserved;
	struct fake_gpu gpus[FAKE_GPUS];
};

#endif
