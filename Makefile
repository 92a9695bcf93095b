# The two commands a newcomer needs: `make demo` and `make test`. Everything else is for developers.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Tests start thousands of interpreters: without its compiled files each takes 0.7 s to start and not 0.1.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-laws test-full test-real test-minutes soak test-cluster test-gpu control-plane engines vm-test vm check docs man site clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(VENV)/base.stamp: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "strata needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --constraint constraints.txt --editable .
	touch $@

$(VENV)/dev.stamp: $(VENV)/base.stamp
	$(PIP) --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(VENV)/base.stamp  ## plan three real jobs, then run and move a small one (no torch, no GPU, no root)
	$(BIN)/strata demo
	$(BIN)/strata demo --live

# Half of the time these wait for processes, clocks and sockets: on two cores four at once are done sooner.
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 4); test $$n -gt 4 && echo $$n || echo 4)
test: $(VENV)/dev.stamp  ## run all tests that need no real parts and take no long time
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --durations 20 -m 'not real and not long and not full'

ROUNDS ?= 20
test-laws: $(VENV)/dev.stamp  ## run the properties with ROUNDS times new random examples (nightly; 20 rounds: hours)
	for round in $$(seq $(ROUNDS)); do \
	  seed=$$(od -An -N4 -tu4 /dev/urandom | tr -d ' '); \
	  echo "round $$round of $(ROUNDS): STRATA_LAWS=1 pytest -m hypothesis --hypothesis-seed=$$seed"; \
	  STRATA_LAWS=1 $(BIN)/python -m pytest -q -n auto --dist loadgroup -m hypothesis --hypothesis-seed=$$seed || exit 1; \
	done

$(VENV)/real.stamp: $(VENV)/dev.stamp
	$(PIP) --constraint constraints.txt --editable '.[cluster,dev,models,train]' py-spy stable-baselines3 playwright axe-playwright-python nbclient ipykernel nvidia-cuda-runtime-cu12
	touch $@

# Tests that share a server, a device or the kernel's tracing run one after another in one process (tests/conftest.py).
# Clusters of Slurm and recordings need packages of the system, which .ci/run names.
test-real: $(VENV)/real.stamp control-plane engines  ## install the real parts (10 GB) and run the tests that need them
	STRATA_REAL=1 $(BIN)/python -m pytest -n auto --dist loadgroup --durations 20 -m '(real or long) and not full'

test-minutes: $(VENV)/real.stamp control-plane  ## run the tests that take minutes each
	STRATA_REAL=1 $(BIN)/python -m pytest -m full

SOAK_S ?= 3600
soak: $(VENV)/real.stamp  ## break gateways and workers under 200 clients for SOAK_S=3600 seconds, and say how requests ended
	STRATA_REAL=1 STRATA_SOAK_S=$(SOAK_S) $(BIN)/python -m pytest -s tests/serving/worker/test_soak.py

control-plane:  ## build Kubernetes, etcd and containerd for the tests, once (needs Go; 10 to 15 minutes on two cores)
	tools/controlplane/build

engines:  ## install vLLM, llama.cpp, routers and clients for the tests of the gateway, once (7 GB; 5 minutes)
	PYTHON=$(PYTHON) tools/engines/build

$(VENV)/cluster.stamp: $(VENV)/dev.stamp
	$(PIP) --constraint constraints.txt --editable '.[cluster,dev]'
	touch $@

test-cluster: $(VENV)/cluster.stamp control-plane  ## run the tests on a real Kubernetes control plane
	STRATA_REAL=1 $(BIN)/python -m pytest tests/cluster/integration

vm:  ## fetch a kernel and build scx_layered for the tests in a virtual machine, once (needs Rust, clang, qemu)
	tools/vm/build

vm-test: $(VENV)/dev.stamp vm  ## run strata host on a kernel with sched_ext, in a virtual machine (15 minutes)
	STRATA_VM=1 $(BIN)/python -m pytest tests/host/vm

test-gpu: $(VENV)/dev.stamp  ## hold the slicing library and the workers against a real NVIDIA GPU that nobody else uses (an hour; says what it measured)
	$(BIN)/python -m pytest tests/slicing/gpu tests/serving/pretrained/test_on_a_gpu.py -s -rs -p no:xdist -o addopts=

test-full: test test-real test-minutes vm-test  ## all of these and 3 rounds of test-laws: before an issue is called resolved
	$(MAKE) test-laws ROUNDS=3

check: $(VENV)/dev.stamp  ## lint, types, import floors, generated docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python docs/generate.py --check

site: $(VENV)/dev.stamp  ## build the documentation as a site into build/site
	$(BIN)/python docs/site.py build/site

man: $(VENV)/dev.stamp  ## write a man page for every command into build/man
	$(BIN)/python docs/man.py build/man

docs: $(VENV)/dev.stamp  ## write the generated pages of docs/
	$(BIN)/python docs/generate.py

clean:  ## forget the venv and everything generated
	rm -rf $(VENV) out dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
