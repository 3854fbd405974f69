# Everything a person does with this repository. `make` alone lists the targets.
#
# Needed: Linux, Python >= 3.10 with venv, make. Packages come through pip as it is set up on this machine
# (pip.conf, PIP_INDEX_URL, PIP_EXTRA_INDEX_URL and so on). The default build of torch for Linux carries CUDA,
# about 3 GB; where the CPU build lies in an index of its own, name that: make test PIP_EXTRA_INDEX_URL=...

PYTHON ?= python3
PAIRS ?= 10
# What `make soak` simulates, in how many processes, and for how long it runs real agents after that.
SEEDS ?= 0:20000
SOAK_PROCESSES ?= 2
SOAK_SECONDS ?= 600
SOAK ?= .venv/bin/python -m tests.support.soak --seconds $(SOAK_SECONDS) --agents 8
# What `make slow` does: explore, traces or versions.
WHAT ?= explore
# The version whose agents `make slow WHAT=versions` has meet those of today.
OLD_VERSION ?= 38525e974b9ed3122daf435edc6ebbc5cbbd7a53
# CPU seconds that `make best` spends on one cluster of more than 270 nodes; smaller ones get less.
SEARCH_SECONDS ?= 20

# Compiled modules are part of what is measured, on either side.
BENCH := env -u PYTHONDONTWRITEBYTECODE .venv/bin/python

# Tests without servers, processes or networks; then all others. A directory in no list fails a test.
UNIT_TESTS := $(wildcard tests/unit tests/protocol tests/store)
# Minutes of random faults in processes of their own, and hundreds of searches for a plan: not for `make unit`.
LONGER := tests/protocol/test_simulation.py tests/protocol/test_checker.py tests/protocol/test_rules.py tests/protocol/test_explore.py \
	tests/protocol/test_frozen_traces.py tests/unit/test_placement_properties.py tests/unit/test_placement_optima.py
PROCESS_TESTS := $(wildcard tests/cli tests/processes)
# Whole jobs, on one machine and on several.
JOB_TESTS := $(wildcard tests/network tests/end_to_end)
# Each behaviour by torchrun and by meshrun, for minutes: `make compat`.
COMPAT_TESTS := $(wildcard tests/compat)
# Libraries that are started by a launcher, in an environment of their own: `make clients`.
CLIENTS_TESTS := $(wildcard tests/clients)
# Agents of this version and of an older one: `make slow WHAT=versions`.
VERSIONS_TESTS := $(wildcard tests/versions)

SOURCES := $(shell find launcher rendezvous -name '*.py')

.PHONY: help demo test unit lint docs compat clients soak slow report bench nodes placement best optima browser servers faults mutants stores attacks clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile

demo: .demo-venv/installed ## train on two workers of this machine, in an environment of its own
	.demo-venv/bin/meshrun --standalone --nproc-per-node 2 examples/ddp_digits.py

# Two halves beside each other: the tests of whole jobs wait more than they compute.
test: .venv/installed .witness/installed lint browser servers ## lint, types, and every test
	@$(MAKE) --no-print-directory --output-sync=target -j2 test-jobs test-parts

.PHONY: test-parts test-jobs
test-parts:
	.venv/bin/pytest $(UNIT_TESTS) $(PROCESS_TESTS)
test-jobs:
	.venv/bin/pytest $(JOB_TESTS)

unit: .venv/installed ## the tests without servers or processes, in seconds, on two cores
	@$(MAKE) --no-print-directory --output-sync=target -j2 unit-decisions unit-others

PLACEMENT := $(wildcard tests/unit/test_placement*.py)

.PHONY: unit-decisions unit-others
unit-decisions:
	.venv/bin/pytest -m "not server" $(filter-out $(LONGER),$(PLACEMENT)) $(filter-out tests/unit,$(UNIT_TESTS)) $(addprefix --ignore=,$(LONGER))
unit-others:
	.venv/bin/pytest tests/unit $(addprefix --ignore=,$(PLACEMENT))

lint: .venv/installed ## ruff and mypy
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy

docs: .venv/installed ## build the documentation into site/; a warning is an error
	.venv/bin/python -m launcher.help > docs/reference/options.md
	.venv/bin/python docs/settings.py > docs/reference/settings.md
	.venv/bin/python docs/meshctl.py > docs/reference/meshctl.md
	.venv/bin/python docs/facts.py
	.venv/bin/meshctl plan dgx:4x8x8 --mesh 'pp=4,dp=*,tp=8' --lose h3 --svg docs/images/placement.svg >/dev/null
	.venv/bin/mkdocs build --strict

# Eight minutes on a quiet machine, nearly all of them torchrun's.
compat: .venv/installed servers ## what torchrun does and what meshrun does, side by side, on more than a hundred command lines
	.venv/bin/pytest $(COMPAT_TESTS)

# Ten minutes, and more the first time: DeepSpeed compiles.
clients: .clients-venv/installed servers ## real libraries under meshrun on CPUs: torch, JAX, accelerate, transformers, DeepSpeed
	.clients-venv/bin/pytest $(CLIENTS_TESTS) -rs --durations=0 --durations-min=1

soak: .venv/installed servers ## simulate the protocol under the faults of 20,000 seeds, then run 8 real agents for ten minutes
	.venv/bin/python -m rendezvous.testing --seeds $(SEEDS) --processes $(SOAK_PROCESSES)
	$(SOAK)

slow: .venv/installed servers ## the long form of a test: WHAT=explore, traces or versions
	@case "$(WHAT)" in \
	explore) .venv/bin/python -m rendezvous.testing.explore ;; \
	traces) FREEZE_SEEDS=2000 .venv/bin/pytest tests/protocol/test_frozen_traces.py ;; \
	versions) rm -rf build/old && mkdir -p build/old && git archive $(OLD_VERSION) launcher rendezvous | tar x -C build/old && \
		OLD_VERSION=$$PWD/build/old .venv/bin/pytest $(VERSIONS_TESTS) ;; \
	*) echo "make slow: WHAT must be explore, traces or versions, not $(WHAT)" >&2; exit 2 ;; esac

# REPORT=--from-records makes the page anew from the records that are there, REPORT='--only startup,warm' measures these.
BUDGET ?= 20m
REPORT ?=
report: .venv/installed servers ## all benchmarks beside torchrun, in BUDGET; tables and pictures of docs/performance.md
	$(BENCH) -m benchmarks.report --budget $(BUDGET) $(REPORT)

# Longer than in the report. What is appended to the records is on the page after `make report REPORT=--from-records`.
bench: .venv/installed servers ## one node: meshrun and torchrun in turns, PAIRS times; records in benchmarks/records
	$(BENCH) -m benchmarks.startup --check
	for name in startup memory restart warm output; do \
		$(BENCH) -m benchmarks.$$name --pairs $(PAIRS) --json benchmarks/records/$$name.jsonl || exit 1; done

# Half an hour: eight agents share the cores of one machine, and torchrun's need long to start.
nodes: .venv/installed servers ## several agents and a real etcd: first rounds, lost nodes, and growth to thousands
	for name in rendezvous failover scale; do \
		$(BENCH) -m benchmarks.$$name --json benchmarks/records/$$name.jsonl || exit 1; done

placement: .venv/installed ## quality, time and memory of the planner
	$(BENCH) -m benchmarks.placement --json benchmarks/records/placement.jsonl

best: .venv/installed ## search long for layouts better than those the planner is measured against
	.venv/bin/python -m pip install --quiet --constraint constraints.txt numba
	nice .venv/bin/python -m benchmarks.long_search --seconds $(SEARCH_SECONDS)

# Two minutes. The solver, and pandas behind it, is for this target alone.
optima: .venv/installed ## prove the stored optima of small instances again
	.venv/bin/python -m pip install --quiet --constraint constraints.txt --config-settings editable_mode=compat --editable '.[optima]'
	nice .venv/bin/python -m tests.support.placement.optima

# The tests of pictures need a browser; without one, and without the means to install it, they are skipped and say so.
browser: ## install Debian's chromium where there is none and this user may
	@command -v chromium >/dev/null || if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium >/dev/null; \
	else echo "no chromium here: the tests of pictures are skipped"; fi

# Real etcd servers, and namespaces for tests of networks. Debian would also run etcd as a service of this machine, on
# the port that everybody's etcd has: not for the sake of tests.
SERVERS := etcd:etcd-server etcdctl:etcd-client ip:iproute2 openssl:openssl
servers: ## install etcd, etcdctl, ip and openssl from Debian where they are missing and this user may
	@packages=""; for pair in $(SERVERS); do \
		PATH="/usr/bin:/usr/sbin:/sbin:/bin" command -v "$${pair%%:*}" >/dev/null || packages="$$packages $${pair##*:}"; done; \
	if [ -z "$$packages" ]; then exit 0; fi; \
	if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
		echo "the tests need what these packages of Debian hold:$$packages" >&2; exit 1; fi; \
	apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $$packages >/dev/null; \
	case "$$packages" in *etcd-server*) \
		systemctl disable --now etcd >/dev/null 2>&1 || { service etcd stop; update-rc.d etcd disable; } >/dev/null 2>&1 || true;; \
	esac

# An hour and a half on two quiet cores. MUTANTS='--seeds 100 --layers simulation outage' asks less.
MUTANTS ?= --seeds 2000
mutants: .venv/installed ## plant faults in the agreement one at a time, and tell which tests notice
	nice .venv/bin/python -m tests.support.mutants $(MUTANTS)

# A third of the faults hits the leader's node. An hour and a half for 20 of each.
FAULTS ?= 20
ATTACK_SECONDS ?= 30
faults: .venv/installed servers ## kill, cut off and freeze nodes and the store, FAULTS times each
	FAULT_REPEATS=$(FAULTS) .venv/bin/pytest tests/network

attacks: .venv/installed servers ## attack a job and its store from another user, ATTACK_SECONDS in each way
	ATTACK_S=$(ATTACK_SECONDS) .venv/bin/pytest tests/store/test_served_strangers.py tests/end_to_end/test_strangers.py tests/end_to_end/test_attacks.py

clean: ## remove what these targets made
	rm -rf .venv .demo-venv .clients-venv .witness build site meshrun.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# compat: a plain entry on the path; the default hook would cost every Python of this environment 11 ms to start.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --constraint constraints.txt \
		--config-settings editable_mode=compat --editable '.[dev,docs,examples,report]'
	touch $@

STORE_EXAMPLES ?= 600
stores: .venv/installed servers ## hold every kind of store against the model with STORE_EXAMPLES runs of random steps
	STORE_EXAMPLES=$(STORE_EXAMPLES) .venv/bin/pytest tests/store/test_against_model.py

# A client of etcd that is not ours, to look over its shoulder. Its protobuf is too old for any other environment.
.PHONY: witness
witness: .witness/installed
.witness/installed:
	$(PYTHON) -m venv .witness
	.witness/bin/python -m pip install --quiet 'etcd3==0.12.0' 'protobuf>=3.20,<3.21' 'grpcio>=1.60,<2'
	touch $@

# DeepSpeed by itself: it comes as source, and may fail where the others do not. Its parts for CPUs are compiled by the
# tests, or not at all.
.clients-venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .clients-venv
	.clients-venv/bin/python -m pip install --quiet --constraint constraints.txt \
		--config-settings editable_mode=compat --editable '.[etcd,examples,clients]' pytest psutil setuptools
	DS_BUILD_OPS=0 .clients-venv/bin/python -m pip install --quiet --constraint constraints.txt --no-build-isolation deepspeed || \
		echo "deepspeed cannot be installed here: its tests are skipped"
	touch $@

# Not editable: the demo runs what a user gets. `build` would carry modules that are gone into the new wheel.
.demo-venv/installed: pyproject.toml constraints.txt $(SOURCES)
	$(PYTHON) -m venv .demo-venv
	rm -rf build
	.demo-venv/bin/python -m pip install --quiet --constraint constraints.txt '.[examples]'
	touch $@
