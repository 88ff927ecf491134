# Every target makes what it needs. `make` alone says what there is.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest
WORKERS ?= 2
ARGS ?=
ROUNDS ?= 10
SEED ?= 1
CASES ?= 100000

.DEFAULT_GOAL := help
.PHONY: help demo demo-down kind-demo test unit e2e chaos fuzz bench bench-scale lint format crds chart run sbom lock

help:  ## show this
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than Python 3.11: make PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing the pinned dependencies into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(STAMP)  ## roll a policy over a real control plane, and watch
	@$(BIN)/python -m testbed.demo $(ARGS)

demo-down: $(STAMP)  ## end what `make demo` left running
	@$(BIN)/python -m testbed down --name demo

kind-demo:  ## the same with real kubelets, where there is docker; ARGS=down takes it away
	@sh testbed/kind/demo.sh $(ARGS)

test: lint unit e2e  ## everything: lint, types, unit, property and end-to-end tests

unit: $(STAMP)  ## rules and invariants
	@$(PYTEST) -q -m 'not e2e' -n $(WORKERS) $(ARGS)

e2e: $(STAMP)  ## promises, on a real control plane (the first run builds it)
	@$(BIN)/python -m testbed build
	@$(PYTEST) -q -m e2e -n $(WORKERS) --dist loadfile $(ARGS)

chaos: $(STAMP)  ## everything goes wrong at once: ROUNDS=100 SEED=7 WORKERS=6 for more and other rounds; dist/chaos.log tells of each
	@$(BIN)/python -m testbed build
	@mkdir -p dist
	@CHAOS_ROUNDS=$(ROUNDS) CHAOS_SEED=$(SEED) CHAOS_RECORD=dist/chaos.log $(PYTEST) -q -n $(WORKERS) tests/e2e/test_chaos.py $(ARGS)

fuzz: $(STAMP)  ## hostile input of every kind, in bounded time and memory; each time other cases
	@ulimit -v 4000000; HOSTILE=$(CASES) $(PYTEST) -q -n $(WORKERS) --dist worksteal tests/properties/test_hostile_*.py $(ARGS)

bench: $(STAMP)  ## how long it takes, against bounds: ARGS=plan for one of the measurements
	@$(BIN)/python -m testbed build
	@$(BIN)/python -m tests.bench $(ARGS)

bench-scale: $(STAMP)  ## the same for 5,000 nodes; takes 45 minutes and 8 GB
	@$(BIN)/python -m testbed build
	@$(BIN)/python -m tests.bench scale rollout_scale $(ARGS)

lint: $(STAMP)  ## style, types, and who may import whom
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache --no-logo

format: $(STAMP)  ## put the code into shape
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

crds: $(STAMP)  ## write crds/ and the reference from the models
	@$(BIN)/python -m gpupartition.api.crd
	@$(BIN)/python -m gpupartition.api.reference

chart: $(STAMP)  ## write what of the Helm charts follows from manifests/ and crds/
	@$(BIN)/python -m tests.unit.chart

run: $(STAMP)  ## the operator against the current kube context
	@$(BIN)/python -m gpupartition run $(ARGS)

sbom: $(STAMP)  ## list what is in the image, for scanners: dist/sbom.cdx.json
	@$(BIN)/python -m tests.unit.sbom

lock: $(STAMP)  ## pin all dependencies anew, with hashes
	@$(BIN)/python -m pip install --quiet uv
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --extra dev pyproject.toml -o requirements.lock
