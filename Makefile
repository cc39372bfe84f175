# Every target sets up what it needs in .venv. The same commands serve people and CI.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
TORCH ?= torch==2.13.0
ifndef SEED
SEED := $(shell $(PYTHON) -c 'import random; print(random.randrange(1 << 32))')
endif

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev setup-torch demo check test deep e2e fuzz bench openapi format clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	$(PIP) -e '.[dev]'
	@touch $@

$(VENV)/.torch: $(VENV)/.dev
	$(PIP) '$(TORCH)' numpy
	@touch $@

setup: $(VENV)/.base ## install Muster into .venv
setup-dev: $(VENV)/.dev ## install Muster and what checks and tests need
setup-torch: $(VENV)/.torch ## the same with torch, for make e2e

demo: $(VENV)/.base ## start a gateway, an agent and four lock-step processes, slow one down, name it
	@rc=0; $(BIN)/muster demo --fault straggler:2 $(ARGS) || rc=$$?; \
	case $$rc in 0|1|2) exit 0;; *) exit $$rc;; esac

check: $(VENV)/.dev ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

test: $(VENV)/.dev ## all tests that need no torch
	$(BIN)/python -m pytest -m 'not torch' $(ARGS)

deep: $(VENV)/.dev ## generated statements against one DuckDB, fifty times as many; SEED=n repeats a run
	@echo "seed $(SEED)"
	HYPOTHESIS_PROFILE=deep $(BIN)/python -m pytest -m 'not torch' tests/sql/test_generated.py tests/sql/test_generated_schemas.py \
	  --hypothesis-seed=$(SEED) --timeout=0 $(ARGS)

e2e: $(VENV)/.torch ## real torchrun jobs (gloo, CPU), end to end
	$(BIN)/python -m pytest -m torch $(ARGS)

fuzz: $(VENV)/.dev ## mutated statements against guard, planner and the agent's engine: make fuzz SECONDS=3600 SEED=1
	$(BIN)/python tests/fuzz/fuzz_sql.py --seconds $(or $(SECONDS),60) --out build/fuzz $(if $(SEED),--seed $(SEED)) $(ARGS)

bench: $(VENV)/.torch ## benchmarks; each prints its figure beside what it is compared with
	@for b in bench/bench_*.py; do echo "== $$b"; $(BIN)/python $$b || exit 1; done

openapi: $(VENV)/.base ## write openapi/*.yaml from the code
	$(BIN)/python -m muster.cli.openapi openapi

format: $(VENV)/.dev ## put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove .venv and build outputs
	rm -rf $(VENV) build dist
