# The commands of a checkout. They work in .venv, which they make: `make help`.

PYTHON ?=
WORKERS ?= 2
DEMO_ARGS ?=
TEST_ARGS ?=
BENCH_ARGS ?=
CHAOS_SECONDS ?= 60
CHAOS_SEED ?=
CHAOS_ARGS ?=

SOURCES = $(wildcard timeoutmgr persistence satellites tests benchmarks examples)
BIN = .venv/bin
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
PYTEST = $(BIN)/python -m pytest -n $(WORKERS)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: mutants help demo test crash chaos check lint types cover bench approve clean

help: ## list these commands
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | \
		while IFS='|' read -r name text; do printf '%-16s%s\n' "$$name" "$$text"; done
	@echo
	@echo 'Variables: PYTHON=python3.12  WORKERS=4  TEST_ARGS="-k poller"  DEMO_ARGS="--help"'

demo: .venv/installed ## a day of flights on the embedded database, with one process killed half-way
	@$(BIN)/python examples/flights/run.py $(DEMO_ARGS)

test: .venv/installed-test ## all tests, on real servers where there are any
	$(PYTEST) $(TEST_ARGS)

crash: .venv/installed-test ## kill a process at every crash point, on every reference pair
	$(PYTEST) tests/crash -m crash_full $(TEST_ARGS)

chaos: .venv/installed ## kill, pause and cut off workers for a minute; was anything lost, early or repeated?
	@$(BIN)/python -m timeoutmgr.testing.chaos --seconds $(CHAOS_SECONDS) $(if $(CHAOS_SEED),--seed $(CHAOS_SEED)) $(CHAOS_ARGS)

check: lint types ## lint, format and types

lint: .venv/installed-test
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

types: .venv/installed-test ## types of the package and of the tests
	.ci/typings
	$(BIN)/mypy

cover: .venv/installed-test ## all tests, with branch coverage of at least 90 %
	@mkdir -p build/coverage
	$(PYTEST) --cov --cov-report=term-missing:skip-covered $(TEST_ARGS)

bench: .venv/installed-test ## the rates of storing and dispatching on this machine
	@for program in $(sort $(wildcard benchmarks/*.py)); do \
		echo "== $$program"; $(BIN)/python "$$program" $(BENCH_ARGS) || exit 1; done

approve: .venv/installed-test ## accept the public names and the checklist page as they are now
	TIMEOUTMGR_APPROVE=1 $(BIN)/python -m pytest -q tests/test_public_api.py
	$(BIN)/python -m tests.behaviours

mutants: .venv/installed-test ## the wrong orders of the steps, each of which the model check must catch
	$(BIN)/python -m pytest -q tests/model/test_mutants.py

clean: ## remove all that the commands above have made
	rm -rf .venv build dist *.egg-info .hypothesis .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

.venv/bin/python:
	.ci/venv .venv $(PYTHON)

# Editable, so that a change of the source needs no second installation; a change of these files does.
.venv/installed: .venv/bin/python setup.cfg pyproject.toml
	$(PIP) --editable .
	@touch $@

.venv/installed-test: .venv/bin/python setup.cfg pyproject.toml
	$(PIP) --editable '.[test]'
	@touch .venv/installed $@
