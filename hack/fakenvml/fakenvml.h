/*
 * The state of the fake NVML, shared through one memory-mapped file.
 *
 * hack/fakelibrary.py reads these structures, and hack/fakenvml/control.py writes them; the library only reads. All
 * fields are naturally aligned, so the layout is the same in C and in ctypes; `size` is checked when the file is mapped.
 */
#ifndef KUBEMEND_FAKENVML_H
#define KUBEMEND_FAKENVML_H

#include <stdint.h>

#define FAKE_MAGIC 0x4c4d564eu /* "NVML" */
#define FAKE_VERSION 3u
#define FAKE_GPUS 16
#define FAKE_MIGS 8
#define FAKE_PROCESSES 16
#define FAKE_FIELDS 32
#define FAKE_LINKS 18
#define FAKE_LINK_COUNTERS 4
#define FAKE_ERRORS 8
#define FAKE_EVENTS 256
#define FAKE_TEXT 96

enum fake_driver { DRIVER_LOADED, DRIVER_ABSENT, DRIVER_MISMATCH };

enum fake_fault { FAULT_NONE, FAULT_LOST, FAULT_RESET_REQUIRED, FAULT_UNKNOWN };

/* Functions that hang or are slow together. */
enum fake_group { GROUP_INIT = 1, GROUP_HANDLES = 2, GROUP_GETTERS = 4, GROUP_EVENTS = 8 };

struct fake_event {
	uint64_t type;
	uint64_t data;
	uint32_t gpu;
	uint32_t gpu_instance;
	uint32_t compute_instance;
	uint32_t reserved;
};

struct fake_field { /* `result` is the nvmlReturn of this field alone, `type` its nvmlValueType; id 0 is an empty slot */
	uint64_t value;
	uint32_t id;
	uint32_t result;
	uint32_t type;
	uint32_t reserved;
};

struct fake_link { /* `counters` in the order of link_field_ids, each with an nvmlReturn of its own */
	uint64_t counters[FAKE_LINK_COUNTERS];
	uint32_t present;
	uint32_t active;
};

struct fake_error { /* what one function answers on one GPU; an empty name is an empty slot */
	char function[FAKE_TEXT];
	uint32_t result;
	uint32_t reserved;
};

/* Which of NVML's three lists a process is in. */
enum fake_kind { KIND_COMPUTE, KIND_GRAPHICS, KIND_MPS };

struct fake_process { /* `used` is NVML_VALUE_NOT_AVAILABLE (all ones) where the driver does not report it */
	uint64_t used;
	uint32_t pid;
	uint32_t gpu_instance;
	uint32_t compute_instance;
	uint32_t kind;
};

struct fake_mig {
	char uuid[FAKE_TEXT];
	uint64_t memory_total;
	uint32_t present;
	uint32_t gpu_instance;
	uint32_t compute_instance;
	uint32_t reserved;
};

struct fake_gpu {
	char name[FAKE_TEXT];
	char uuid[FAKE_TEXT];
	char serial[FAKE_TEXT];
	uint64_t memory_total;
	uint64_t memory_used;
	uint64_t supported_events;
	uint64_t clocks_event_reasons;
	uint64_t ecc_dram[2][2]; /* [corrected, uncorrected][volatile, aggregate] */
	uint64_t ecc_sram[2][2];
	uint32_t present;
	uint32_t fault;
	uint32_t hang_groups;
	uint32_t domain;
	uint32_t bus;
	uint32_t device;
	uint32_t minor;
	uint32_t remapped[4]; /* correctable, uncorrectable, pending, failure */
	uint32_t mig_mode;
	uint32_t persistence;
	uint32_t temperature;
	uint32_t power_mw;
	uint32_t slowdown_temperature;
	uint32_t memory_max_temperature;
	uint32_t utilization;
	uint32_t sm_clock;
	uint32_t sm_clock_max;
	uint32_t pstate;
	uint32_t pcie_generation;
	uint32_t pcie_generation_max;
	uint32_t pcie_width;
	uint32_t pcie_width_max;
	uint32_t pcie_replays;
	uint32_t retirement_pending;
	uint32_t sram_threshold_exceeded;
	uint32_t fabric_state;
	uint32_t fabric_status;
	uint32_t fabric_mask;
	uint32_t fabric_summary;
	uint32_t link_results[FAKE_LINK_COUNTERS];
	uint32_t process_count;
	uint32_t reserved;
	struct fake_link links[FAKE_LINKS];
	struct fake_error errors[FAKE_ERRORS];
	struct fake_field fields[FAKE_FIELDS];
	struct fake_process processes[FAKE_PROCESSES];
	struct fake_mig migs[FAKE_MIGS];
};

struct fake_state {
	uint32_t magic;
	uint32_t version;
	uint32_t size;
	uint32_t generation; /* futex: incremented after every change */
	uint32_t driver;
	uint32_t hang_groups;
	uint32_t slow_groups;
	uint32_t slow_ms;
	uint32_t event_head; /* events ever queued; the ring holds the last FAKE_EVENTS */
	uint32_t cuda_version;
	uint32_t clock_event_ms; /* between two clock events of a GPU; 0: none */
	uint32_t call_cost_us;   /* processor time that each getter uses */
	char driver_version[FAKE_TEXT];
	struct fake_event events[FAKE_EVENTS];
	struct fake_gpu gpus[FAKE_GPUS];
};

#endif
