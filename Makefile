# kubemend: `make demo` shows it, `make test` tests it. Both set up their requirements, on Debian, as root:
# a virtual environment in .venv, and a private containerd with its tools in .dev (nothing on the host is replaced).
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
export PATH := $(abspath $(BIN)):$(PATH)
# The tests start hundreds of Python processes. Without a cache each compiles the product again: half a second of CPU.
export PYTHONDONTWRITEBYTECODE :=
# The Go programs of the dev cluster and their build collect garbage less often: a fifth less CPU, but more memory.
export GOGC ?= 400

# Generators of files that are committed with their sources; with --check each checks that they are current.
GENERATORS := protogen catalog_doc monitoring api_doc chart performance_doc steps_doc

.DEFAULT_GOAL := help
.PHONY: help venv devnode kubernetes crio platforms image demo test test-long test-platforms test-vm lint lint-types lint-rest unit test-gpu format bench bench-crash bench-dying bench-faults bench-gpu bench-launched bench-proofs bench-steps generate lock clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 12

# uv takes a quarter of pip's time. It does not read pip's configuration: if it fails, pip installs the packages.
# The plain path halves the start of each Python, in comparison with a module that finds the packages' folders.
EDITABLE := --quiet --config-settings editable_mode=compat --editable
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { apt-get update -q && apt-get install -qy python3-venv; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv && $(BIN)/uv pip install --python $(BIN)/python $(EDITABLE) '.[dev]' \
	    || $(BIN)/python -m pip install --no-compile $(EDITABLE) '.[dev]'
	touch $@

venv: $(VENV)/.installed  ## create .venv and install kubemend with its test tools

devnode: venv  ## fetch the dev node's programs: containerd, runc, crun, CNI, busybox, other Pythons, a C compiler
	python -m hack.devnode setup

kubernetes: venv  ## build etcd, the Kubernetes programs and kubectl from their Go modules, once (ten minutes on two cores)
	python -m hack.devnode kubernetes

crio: venv  ## build CRI-O from its Go module, once, as the dev cluster's second runtime (five minutes on two cores)
	python -m hack.devnode crio

platforms: venv  ## build other projects' controllers of training pods from their Go modules, once (half an hour on two cores)
	python -m tests.platforms

image: venv  ## build the image with buildah on a base of Debian's packages, and list its content (Debian, root)
	python -m hack.image

demo: devnode kubernetes  ## GPU faults restart a container and a gang of four in place, on real Kubernetes
	python -m hack.demo

# Several API servers run at a time. On one processor each costs a sixth less, above all when it is idle.
# Scenarios wait for much of their time: two more worker processes run unit tests in it, at low priority.
test: lint devnode kubernetes  ## everything that CI runs
	GOMAXPROCS=1 python -m pytest -n 4 --background-worker gw2 --background-worker gw3 --dist loadscope --no-loadscope-reorder

test-long: devnode kubernetes crio platforms image  ## the slower checks: the tests marked long, the whole matrix, kill runs, fault suite, an installation (hours)
	python -m pytest -m long -n 3 --dist loadscope --no-loadscope-reorder
	python -m pytest -m "" tests/scenarios/matrix --matrix=full
	KUBEMEND_DEV_RUNTIME=cri-o python -m pytest -m "" tests/scenarios/matrix --matrix=full
	KUBEMEND_DEV_RUNTIME=cri-o python -m pytest -m "" tests/scenarios/gang
	KUBEMEND_DEV_OCI_RUNTIME=crun python -m pytest tests/containerd tests/contract/cri tests/scenarios/gang
	KUBEMEND_DEV_OCI_RUNTIME=crun python -m pytest -m "" tests/scenarios/matrix
	KUBEMEND_DEV_RUNTIME=cri-o KUBEMEND_DEV_OCI_RUNTIME=crun python -m pytest -m "" tests/crio tests/scenarios/columns/test_crio.py tests/scenarios/matrix
	python -m bench.crash --runs 500
	python -m bench.launched --runs 500
	python -m bench.dying --runs 200
	python -m bench.faults
	python -m pytest -m installation tests/installation

test-platforms: devnode kubernetes platforms  ## next to each of other projects' controllers; prints the table of docs/platforms.md (minutes)
	python -m pytest -m long tests/platforms

VM_TESTS := python -m pytest -n 0 --timeout 1200 -m "vm or not long" tests/scenarios/columns/test_confinement.py tests/containerd/test_swaps.py
test-vm: devnode kubernetes  ## restarts on a virtual node with systemd, cgroup v2 alone, both drivers, and AppArmor (Debian, root; an hour)
	python -m hack.vm -- $(VM_TESTS)
	KUBEMEND_DEV_CGROUP_DRIVER=systemd python -m hack.vm -- $(VM_TESTS)

lint: venv  ## style, types, import contracts, generated files
	@$(MAKE) --no-print-directory --jobs=2 --output-sync lint-types lint-rest

lint-types: venv
	mypy

lint-rest: venv
	ruff check .
	ruff format --check .
	lint-imports
	for generator in $(GENERATORS); do python -m hack.$$generator --check || exit 1; done

unit: venv  ## the tests that need neither root nor a runtime nor an API server
	python -m pytest -n 2 -m "not kubernetes and not devnode and not long" tests/unit

# OFFLINE=1: nothing is installed or fetched. $(PYTHON) has the packages, and .dev the dev node's programs.
test-gpu: $(if $(OFFLINE),,devnode kubernetes)  ## real CUDA faults in pods on this machine's GPU, NVML, proofs; prints records (ten minutes)
	$(if $(OFFLINE),PYTHONPATH=$(CURDIR):$$PYTHONPATH $(PYTHON),python) -m pytest -m gpu $(if $(OFFLINE),-W default) tests/contract/nvml tests/gpu

format: venv  ## format the code and fix simple lint errors
	ruff format .
	ruff check --fix .

bench: devnode kubernetes  ## every strategy against the bare calls, device fault to pod condition, gangs, the hub, other projects, as JSON
	python -m bench.exits
	python -m bench.restart
	python -m bench.reruns
	python -m bench.health
	python -m bench.gang
	python -m bench.hub
	python -m bench.jobset
	python -m bench.peers

bench-steps: devnode kubernetes  ## from a fault to the next training step, for each way to restart a trainer, as JSON (twenty minutes)
	python -m pip install $(EDITABLE) '.[dev,steps]'
	python -m bench.steps

# TORCH_PYTHON is a Python that has torch; without it, .venv must have it.
bench-gpu: $(if $(OFFLINE),,devnode kubernetes)  ## the same with PyTorch on this machine's GPU, as JSON (ten minutes)
	$(if $(OFFLINE),PYTHONPATH=$(CURDIR):$$PYTHONPATH $(PYTHON),python) -m bench.steps.gpu $(if $(TORCH_PYTHON),--python $(TORCH_PYTHON))

bench-crash: devnode kubernetes  ## kill the agent at random steps of restarts, 500 times, as JSON (half an hour)
	python -m bench.crash --runs 500

bench-launched: devnode kubernetes  ## kill the agent and launchers at random moments of restarts, 500 times, as JSON (an hour)
	python -m bench.launched --runs 500

bench-proofs: venv  ## prove a fake GPU that works 10,000 times, as JSON (a quarter of an hour)
	python -m bench.proofs

bench-dying: devnode kubernetes  ## have trainers die of their fault by themselves while they are restarted, 200 times, as JSON (ten minutes)
	python -m bench.dying --runs 200

generate: venv  ## write the generated files: stubs, pages, the chart, the pictures
	for generator in $(GENERATORS); do python -m hack.$$generator || exit 1; done

LOCK := uv pip compile --quiet --upgrade --universal --generate-hashes --no-emit-index-url --no-header --python-version 3.11
lock: venv  ## update the locked packages of the image and of its build: requirements*.lock
	$(BIN)/python -m pip install --quiet uv
	$(LOCK) --extra traces --output-file requirements.lock pyproject.toml
	python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
	    | $(LOCK) --output-file requirements-build.lock -

bench-faults: devnode kubernetes  ## break the product's dependencies, one after another, as JSON (a quarter of an hour)
	python -m bench.faults

clean:  ## remove everything that the other targets created
	-test ! -x $(BIN)/python || $(BIN)/python -m hack.devnode stop --name dev
	rm -rf $(VENV) .dev build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
