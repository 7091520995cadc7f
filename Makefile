# The commands of a checkout. They work in .venv, which they make: `make help`.

PYTHON ?=
WORKERS ?= 3
CRASH_WORKERS ?= 4
DEMO ?= flights
DEMO_ARGS ?=
TEST_ARGS ?=
PAIRS ?=
export PAIRS
BENCH_ARGS ?=
CHAOS_SECONDS ?= 60
CHAOS_SEED ?=
CHAOS_ARGS ?=
CELERY_CHAOS_ARGS ?=

# A look is at rates and lateness: what the others measure takes its time, or volume.
LOOK = limit accept drain lateness confirms
BENCHMARKS = $(if $(findstring --quick,$(BENCH_ARGS)),$(LOOK),$(LOOK) crash processes startup testing_kit event_loop backlog memory purge waiting upgrade delayed_store native migrate sql_broker)
SOURCES = $(wildcard timeoutmgr persistence satellites chaos tests benchmarks examples *.py)
BIN = .venv/bin
# What is used is compiled then; to compile all of Spark ahead takes longer than to install it.
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
PYTEST = $(BIN)/python -m pytest -n $(WORKERS)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: dist changelog docs versions mutants drill long help demo demo-pipeline test crash chaos celery-chaos cluster check lint types cover bench bench-peers approve clean

help: ## list these commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | \
		while IFS='|' read -r name text; do printf '%-21s%s\n' "$$name" "$$text"; done
	@echo
	@echo 'Variables: PYTHON=python3.12  WORKERS=8  PAIRS=all  TEST_ARGS="-k poller"  DEMO_ARGS="--help"'

# What DEMO may be.
DEMO_flights = examples/flights/run.py
DEMO_delayed-store = examples/delayed_store/run.py
DEMO_deadletters = examples/deadletters/run.py

demo: .venv/installed ## a day of flights, one process killed half-way; also DEMO=delayed-store, deadletters
	@$(BIN)/python $(or $(DEMO_$(DEMO)),$(error there is no DEMO=$(DEMO))) $(DEMO_ARGS)

demo-pipeline: .venv/installed-spark ## a year of flights through the data pipeline, on Spark
	@$(BIN)/python examples/pipeline/run.py $(DEMO_ARGS)

test: .venv/installed-test ## all tests, on real servers where there are any
	$(PYTEST) $(TEST_ARGS)

versions: ## a part of the tests on other versions of Python, kombu and SQLAlchemy
	@.ci/versions all

crash: .venv/installed-test ## kill a process at every crash point, on every reference pair
	$(BIN)/python -m pytest -n $(CRASH_WORKERS) tests/crash -m crash_full $(TEST_ARGS)

chaos: .venv/installed ## kill, pause and cut off workers for a minute; was anything lost, early or repeated?
	@$(BIN)/python -m chaos --seconds $(CHAOS_SECONDS) $(if $(CHAOS_SEED),--seed $(CHAOS_SEED)) $(CHAOS_ARGS)

celery-chaos: .venv/installed-test ## 2,000 delayed tasks of Celery on each broker, the worker killed twice; CELERY_CHAOS_ARGS=--beside
	@$(BIN)/python benchmarks/celery_chaos.py --json build/celery-chaos.json $(CELERY_CHAOS_ARGS)

cluster: .venv/installed-test .venv-client/installed ## each job of the pipeline here, on a Spark cluster, and through Spark Connect
	CLIENT=$(CURDIR)/.venv-client/bin/python $(BIN)/python -m pytest -n 0 -m cluster tests/examples $(TEST_ARGS)

check: lint types ## lint, format and types

lint: .venv/installed-test
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/python .ci/prose

types: .venv/installed-test ## types of the package and of the tests
	.ci/typings
	$(BIN)/mypy

cover: .venv/installed-test ## all tests, with branch coverage of at least 90 %
	@mkdir -p build/coverage
	$(PYTEST) --cov --cov-report=term-missing:skip-covered $(TEST_ARGS)

bench: .venv/installed-test ## every figure that needs no other product; BENCH_ARGS=--quick for a look in 2 minutes
	@mkdir -p build/bench
	@for name in $(BENCHMARKS); do \
		$(BIN)/python benchmarks/$$name.py --json build/bench/$$name.json $(BENCH_ARGS) || exit 1; done
	@$(BIN)/python benchmarks/summary.py build/bench

bench-peers: .venv-peers/installed ## the same job beside Celery, dramatiq, procrastinate and others
	@mkdir -p build/bench
	@.venv-peers/bin/python benchmarks/bulk_beside.py --json build/bench/bulk_beside.json $(BENCH_ARGS)
	@.venv-peers/bin/python benchmarks/beside_peers.py --json build/bench/beside_peers.json $(BENCH_ARGS)
	@.venv-peers/bin/python benchmarks/handlers.py --json build/bench/handlers.json $(BENCH_ARGS)

docs: .venv/installed-test ## the documentation site, in build/site; links and anchors are checked
	.ci/typings
	@if ls build/bench/*.json >/dev/null 2>&1; then $(BIN)/python benchmarks/summary.py build/bench; fi
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

changelog: ## the section of a release out of changelog.d/; .ci/changelog VERSION --write changes the files
	@.ci/changelog $$(sed -n 's/__version__ = "\(.*\)"/\1/p' timeoutmgr/_version.py)

dist: .venv/installed-test ## wheel and sdist in dist/, built twice with one digest, checked, installed in each Python here
	$(PIP) --editable '.[release]'
	$(BIN)/python .ci/dist

approve: .venv/installed-test ## accept public names, commands and the page of behaviours as they are now
	TIMEOUTMGR_APPROVE=1 $(BIN)/python -m pytest -q tests/test_public_api.py tests/cli/test_docs.py
	$(BIN)/python -m tests.behaviours

drill: .venv/installed-test ## incidents before a real Prometheus: does each alert fire, and end with its cause?
	$(PYTEST) -n 0 -q -m drill tests/deploy $(TEST_ARGS)

long: .venv/installed-test ## what `make test` tries in one place, in more places: chaos, examples, pools
	$(PYTEST) -m long $(TEST_ARGS)

mutants: .venv/installed-test ## what is made wrong on purpose, in models and in the source, is noticed
	$(PYTEST) -q -m mutants tests/model tests/simulator tests/persistence/stateful
	@$(BIN)/python -m tests.mutation --workers $(WORKERS)

clean: ## remove all that the commands above have made
	rm -rf .venv .venv-client .venv-peers .venv-versions build dist *.egg-info .hypothesis .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

.venv/bin/python:
	.ci/venv .venv $(PYTHON)

# Editable, so that a change of the source needs no second installation; a change of these files does.
.venv/installed: .venv/bin/python setup.cfg pyproject.toml
	$(PIP) --editable '.[asyncio]'
	@touch $@

.venv/installed-spark: .venv/bin/python setup.cfg pyproject.toml
	$(PIP) --editable '.[spark-java,lake]'
	@touch .venv/installed $@

.venv-client/installed: setup.cfg
	.ci/venv .venv-client $(PYTHON)
	.venv-client/bin/python -m pip install --quiet --disable-pip-version-check --no-compile \
		--editable '.[spark-client,postgresql]'
	@echo '*' > .venv-client/.gitignore
	@touch $@

.venv-peers/installed: benchmarks/peers/requirements.txt setup.cfg
	.ci/venv .venv-peers $(PYTHON)
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check \
		--editable '.[test]' --requirement benchmarks/peers/requirements.txt
	@echo '*' > .venv-peers/.gitignore
	@touch $@

.venv/installed-test: .venv/bin/python setup.cfg pyproject.toml
	$(PIP) --editable '.[test]'
	@touch .venv/installed .venv/installed-spark $@
