# The ways into this repository. `make demo` and `make test` are all that a newcomer needs.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Loopback tests wait more than they compute: more workers than cores.
JOBS   ?= 4

.PHONY: help install demo test soak fuzz lab lab-down test-lab lint types licences lock check engines-real test-engines test-engines-large test-podman test-gpu bench goldens clean sshd

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 16

install: $(STAMP)  ## virtual environment with pinned dependencies

# Hashes are required: a swapped package on an index must not reach machines that hold SSH keys.
$(STAMP): requirements-dev.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --require-hashes --requirement requirements-dev.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

sshd:
	@tools/need-sshd

demo: $(STAMP) sshd  ## three loopback SSH nodes, and the story of a fleet
	$(BIN)/reconcile demo

test: $(STAMP) sshd  ## everything: unit, golden, property, contract, end to end on real sshd
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup $(PYTEST_ARGS)

soak: SEEDS ?= 0..100000
soak: MINUTES ?= 240
soak: $(STAMP)  ## 100,000 random fleets with faults, on all cores (SEEDS=0..1000 JOBS=2 MINUTES=10)
	$(BIN)/python -m tests.sim.soak $(SEEDS) --jobs $(JOBS) --minutes $(MINUTES)

engines-real: $(STAMP)  ## fetch a real llama-server and a small real model for `make test`
	@PYTHON=$(BIN)/python tools/fetch-llama .cache/llama || [ $$? = 3 ]

fuzz: FUZZ_S ?= 60
fuzz: $(STAMP)  ## FUZZ_S=60 seconds of coverage-guided fuzzing of the fleet repo's reader (Linux on x86-64)
	$(BIN)/pip install --quiet --require-hashes --no-deps --upgrade --target .cache/fuzz/lib --requirement tests/fleet/requirements-fuzz.txt
	PYTHONPATH=.cache/fuzz/lib nice -n 19 $(BIN)/python -m tests.fleet.fuzz_atheris .cache/fuzz/corpus -max_total_time=$(FUZZ_S) -artifact_prefix=.cache/fuzz/

test-gpu:  ## what observe says of GPUs, against a real NVIDIA driver; skipped by name without one; fetches nothing
	VENV=$(VENV) PYTHON=$(PYTHON) tools/test-gpu $(PYTEST_ARGS)

bench: $(STAMP)  ## the fleet repo and the node edge against their goals, beside the peers that are installed
	$(BIN)/python tools/bench_fleet.py
	$(BIN)/python tools/bench_nodes.py

lab: N ?= 3
lab:  ## N=3 whole Debian nodes with systemd on this machine (root; docs/lab.md)
	$(PYTHON) tools/lab up $(N)

lab-down:  ## take all labs down
	$(PYTHON) tools/lab down --all

test-lab: $(STAMP)  ## tests over lab nodes: systemd, reboot, power cut, full disk
	$(BIN)/python tools/lab image
	$(BIN)/python -m pytest tests/lab $(PYTEST_ARGS)

goldens: $(STAMP)  ## write the engines' golden command lines anew; read the diff
	$(BIN)/python -m pytest tests/engines/test_golden.py --update-goldens

test-engines: $(STAMP)  ## our command lines against the real llama.cpp and Ray (root; 0.3 GB)
	PYTHON=$(BIN)/python tests/engines/real/install .cache/engines rpc ray
	REAL_ENGINES=.cache/engines $(BIN)/python -m pytest tests/engines/real/test_llamacpp.py tests/engines/real/test_ray.py

test-engines-large: $(STAMP)  ## the same for vLLM and SGLang, and a two-node vLLM replica (3.4 GB)
	PYTHON=$(BIN)/python tests/engines/real/install .cache/engines vllm sglang
	REAL_ENGINES=.cache/engines $(BIN)/python -m pytest tests/engines/real/test_parsers.py tests/engines/real/test_vllm.py

test-podman: $(STAMP)  ## launches in real containers (root; podman and crun)
	PYTHON=$(BIN)/python tests/engines/real/install .cache/engines image
	REAL_ENGINES=.cache/engines tests/engines/real/podman-namespace $(BIN)/python -m pytest tests/engines/real/test_podman.py

lint: $(STAMP)  ## ruff, import-linter, vermin, shell syntax
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/vermin --quiet --target=3.8- --violations --no-tips reconciler/agent

types: $(STAMP)  ## mypy --strict
	$(BIN)/mypy

licences: $(STAMP)  ## licences of what we depend on, against those that fit Apache-2.0
	$(BIN)/python tools/check_licences.py

lock:  ## renew requirements-dev.lock (needs uv)
	uv pip compile pyproject.toml --extra dev --generate-hashes --universal --python-version 3.11 -o requirements-dev.lock

check: lint types licences test  ## what CI runs

clean:  ## remove everything that the targets made
	[ ! -d .cache/lab ] || $(PYTHON) tools/lab down --all
	rm -rf $(VENV) .demo .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
