# Everything a person does with this repository. `make` alone lists the targets.
#
# Needed: Linux, Python >= 3.10 with venv, make. Packages come through pip as it is set up on this machine
# (pip.conf, PIP_INDEX_URL, PIP_EXTRA_INDEX_URL and so on). The default build of torch for Linux carries CUDA,
# about 3 GB; where the CPU build lies in an index of its own, name that: make test PIP_EXTRA_INDEX_URL=...

PYTHON ?= python3
PAIRS ?= 10
# What `make soak` runs; SOAK_SECONDS is how long.
SOAK_SECONDS ?= 600
# CPU seconds that `make best` spends on one cluster of more than 270 nodes; smaller ones get less.
SEARCH_SECONDS ?= 20
SOAK ?= .venv/bin/python -m rendezvous.testing --seeds 0:1000000 --seconds $(SOAK_SECONDS)

# Compiled modules are part of what is measured, on either side.
BENCH := env -u PYTHONDONTWRITEBYTECODE .venv/bin/python

# Tests without servers, processes or networks; then all others. A directory in neither list fails a test.
UNIT_TESTS := $(wildcard tests/unit tests/protocol tests/store)
# A minute of random faults in processes of its own, and hundreds of searches for a plan: not for `make unit`.
LONGER := tests/protocol/test_simulation.py tests/protocol/test_checker.py \
	tests/unit/test_placement_properties.py tests/unit/test_placement_optima.py
OTHER_TESTS := $(wildcard tests/cli tests/processes tests/network tests/end_to_end)

SOURCES := $(shell find launcher rendezvous -name '*.py')

.PHONY: help demo test unit lint docs soak bench placement best optima browser clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile

demo: .demo-venv/installed ## train on two workers of this machine, in an environment of its own
	.demo-venv/bin/meshrun --standalone --nproc-per-node 2 examples/ddp_digits.py

test: .venv/installed lint browser ## lint, types, and every test
	.venv/bin/pytest $(UNIT_TESTS) $(OTHER_TESTS)

unit: .venv/installed ## the tests without servers or processes, in seconds, on two cores
	@$(MAKE) --no-print-directory --output-sync=target -j2 unit-decisions unit-others

PLACEMENT := $(wildcard tests/unit/test_placement*.py)

.PHONY: unit-decisions unit-others
unit-decisions:
	.venv/bin/pytest $(filter-out $(LONGER),$(PLACEMENT)) $(filter-out tests/unit,$(UNIT_TESTS)) $(addprefix --ignore=,$(LONGER))
unit-others:
	.venv/bin/pytest tests/unit $(addprefix --ignore=,$(PLACEMENT))

lint: .venv/installed ## ruff and mypy
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy

docs: .venv/installed ## build the documentation into site/; a warning is an error
	.venv/bin/python -m launcher.help > docs/reference/options.md
	.venv/bin/python docs/settings.py > docs/reference/settings.md
	.venv/bin/meshctl plan dgx:4x8x8 --mesh 'pp=4,dp=*,tp=8' --lose h3 --svg docs/images/placement.svg >/dev/null
	.venv/bin/mkdocs build --strict

soak: .venv/installed ## simulate the protocol for SOAK_SECONDS
	$(SOAK)

bench: .venv/installed ## meshrun and torchrun in turns, PAIRS times; records in benchmarks/records
	mkdir -p benchmarks/records
	$(BENCH) benchmarks/startup.py --pairs $(PAIRS) --json benchmarks/records/startup.jsonl
	$(BENCH) benchmarks/memory.py --pairs $(PAIRS) --json benchmarks/records/memory.jsonl
	$(BENCH) benchmarks/restart.py --pairs $(PAIRS) --json benchmarks/records/restart.jsonl
	$(BENCH) benchmarks/output.py --rounds $(PAIRS) >> benchmarks/records/output.jsonl

placement: .venv/installed ## quality, time and memory of the planner; pictures in docs/images
	$(BENCH) -m benchmarks.placement --json benchmarks/records/placement.jsonl --plots docs/images

best: .venv/installed ## search long for layouts better than those the planner is measured against
	.venv/bin/python -m pip install --quiet --constraint constraints.txt numba
	nice .venv/bin/python -m benchmarks.long_search --seconds $(SEARCH_SECONDS)

# Two minutes. The solver, and pandas behind it, is for this target alone.
optima: .venv/installed ## prove the stored optima of small instances again
	.venv/bin/python -m pip install --quiet --constraint constraints.txt --config-settings editable_mode=compat --editable '.[optima]'
	nice .venv/bin/python -m tests.support.optima

# The tests of pictures need a browser; without one, and without the means to install it, they are skipped and say so.
browser: ## install Debian's chromium where there is none and this user may
	@command -v chromium >/dev/null || if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium >/dev/null; \
	else echo "no chromium here: the tests of pictures are skipped"; fi

clean: ## remove what these targets made
	rm -rf .venv .demo-venv build site meshrun.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# compat: a plain entry on the path; the default hook would cost every Python of this environment 11 ms to start.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --constraint constraints.txt \
		--config-settings editable_mode=compat --editable '.[dev,docs,examples]'
	touch $@

# Not editable: the demo runs what a user gets. `build` would carry modules that are gone into the new wheel.
.demo-venv/installed: pyproject.toml constraints.txt $(SOURCES)
	$(PYTHON) -m venv .demo-venv
	rm -rf build
	.demo-venv/bin/python -m pip install --quiet --constraint constraints.txt '.[examples]'
	touch $@
