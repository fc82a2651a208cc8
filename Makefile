# What a developer and CI run. Needs python3, java and sh, nothing else: `make help`.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv demo test test-fast test-cluster tutorial soak service mutants check format bench bench-words bench-forms bench-core bench-memory bench-transactional bench-windows bench-joins bench-states bench-drpc bench-kafka kafka-storm java servers kafka kafka-broker browser screenshots check-java lock audit clean bench-pressure bench-files bench-scale bench-storm docs docs-serve docs-tables

PYTHON ?= python3
ARGS ?=

# Whatever the machine says: without kept bytecode every child of a test, and every worker of Spark,
# compiles the library anew, and pytest rewrites all tests in each of its processes.
export PYTHONDONTWRITEBYTECODE =

# Tests run in two processes, each with servers and a Spark of its own, by file, the longest first
# (tests/budget.py knows them); those without Spark in four, because they often wait; those of a
# cluster, which have several JVMs each, in three.
BY_FILE := --dist loadfile --no-loadscope-reorder
PARALLEL ?= -n 2 $(BY_FILE)
PARALLEL_WAITING ?= -n 4 $(BY_FILE)
PARALLEL_CLUSTER ?= -n 3 $(BY_FILE)
# Soak waits even more: for servers to come back, for leases to run out.
PARALLEL_SOAK ?= -n 4 $(BY_FILE)
PARALLEL_SPARK_SOAK ?= -n 3 $(BY_FILE)

# Only these can have tests on Spark: the others need not be collected again.
SPARK_FILES = $(shell grep -rl --include='test_*.py' 'mark\.spark' tests)

PY := .venv/bin/python
PYTEST := $(PY) -m pytest
STAMP := .venv/.installed

# Runs on any Python, so that an old one can say what is wrong with it.
PYTHON_OK := 'import sys; v = sys.version_info[:2]; sys.exit(v < (3, 11) and \
	"waterspout needs Python 3.11 or newer; found %d.%d. Run `make PYTHON=/path/to/python3.11`." % v)'

# What builds the site is an extra of its own.
MKDOCS_OK := $(PY) -c 'import mkdocs, material, mkdocstrings' 2>/dev/null || { \
	echo "The site needs MkDocs. Run: $(PY) -m pip install '.[docs]'" >&2; exit 2; }

# pytest exits with 5 where it selects no test: an error, unless ARGS selects.
NONE_OK := $(if $(strip $(ARGS)),5,0)

help: ## Show this list
	@while IFS= read -r line; do case $$line in [a-z]*:*'## '*) \
	printf '  make %-20s %s\n' "$${line%%:*}" "$${line#*'## '}" ;; esac; done < Makefile

venv: $(STAMP) ## Make .venv and install waterspout in it; all others do this first
	@:

$(STAMP): pyproject.toml requirements.lock
	@$(PY) -c $(PYTHON_OK) 2>/dev/null || { \
	command -v $(PYTHON) >/dev/null || { \
	echo 'waterspout needs Python 3.11 or newer; there is no $(PYTHON).' >&2; exit 2; }; \
	$(PYTHON) -c $(PYTHON_OK) || exit 2; \
	echo 'Making .venv; the first time this downloads about 500 MB, most of it Spark.'; \
	$(PYTHON) -m venv --clear .venv; }
	@$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@: > $@

demo: check-java $(STAMP) ## Count words, kill -9 in the middle of a commit, resume, compare
	@.venv/bin/waterspout demo $(ARGS)

test: check-java $(STAMP) ## Run the tests, fast ones first, then those on Spark (ARGS='-k name')
	@$(PYTEST) -m 'not spark and not soak and not cluster and not tutorial' $(PARALLEL_WAITING) $(ARGS); fast=$$?; \
	case $$fast in 0|$(NONE_OK)) ;; *) exit $$fast ;; esac; \
	$(PY) -m tests.spark.jvm; \
	$(PYTEST) -m 'spark and not soak' $(PARALLEL) $(ARGS) $(SPARK_FILES); spark=$$?; \
	case $$spark in $(NONE_OK)) exit $$fast ;; *) exit $$spark ;; esac

test-fast: $(STAMP) ## Run the tests that need no Spark
	@$(PYTEST) -m 'not spark and not soak and not cluster and not tutorial' $(PARALLEL_WAITING) $(ARGS)

test-cluster: check-java $(STAMP) ## Run one suite on every kind of Spark, and break a cluster, ten minutes at most
	@$(PY) -m tests.spark.jvm
	@$(PYTEST) -m cluster $(PARALLEL_CLUSTER) $(ARGS) tests/cluster

tutorial: check-java $(STAMP) ## Type the commands of the tutorial and compare what they print
	@$(PYTEST) -m tutorial tests/docs/test_console.py $(ARGS)

soak: export WATERSPOUT_TEST_PROFILE = soak
soak: check-java $(STAMP) ## Run the long random tests, forty minutes at most
	@$(PYTEST) -m 'soak and not spark' --timeout=2100 $(PARALLEL_SOAK) $(ARGS); quick=$$?; \
	$(PY) -m tests.spark.jvm; \
	$(PYTEST) -m 'soak and spark' --timeout=2100 $(PARALLEL_SPARK_SOAK) $(ARGS) $(SPARK_FILES); spark=$$?; \
	case $$quick in 0|$(NONE_OK)) ;; *) exit $$quick ;; esac; \
	case $$spark in $(NONE_OK)) exit $$quick ;; *) exit $$spark ;; esac

service: export WATERSPOUT_SERVICE_SECS ?= 900
service: check-java $(STAMP) ## Run a service for fifteen minutes, with outages, kills and a deploy
	@$(PYTEST) -m soak --timeout=2100 -s tests/spark/test_service.py $(ARGS)

kafka-storm: export WATERSPOUT_KAFKA_MESSAGES ?= 2000000
kafka-storm: check-java $(STAMP) ## Send two million messages through brokers and drivers that are killed
	@$(PYTEST) -m soak --timeout=4000 -s tests/spark/test_kafka_storm.py $(ARGS)

mutants: check-java $(STAMP) ## Break one rule after the other and see the tests fail (ARGS=word)
	@$(PY) -m tests.mutants $(ARGS)

check: $(STAMP) ## Lint, check the format, check the types
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

format: $(STAMP) ## Mend what the linter can, and format
	@$(PY) -m ruff check --fix-only .
	@$(PY) -m ruff format .

bench: check-java $(STAMP) ## Measure everything beside its peers, twenty minutes at most (ARGS='--only words --keep')
	@$(PY) -m benchmarks.suite $(ARGS)

profile: check-java $(STAMP) ## Show where each millisecond of a batch and of a wave goes (ARGS=...)
	@$(PY) -m benchmarks.profile $(ARGS)

bench-words: check-java $(STAMP) ## Measure Trident's word count against hand-written streaming (ARGS=...)
	@$(PY) -m benchmarks.word_count $(ARGS)

bench-forms: check-java $(STAMP) ## Measure a function in all its forms against plain Spark jobs (ARGS=...)
	@$(PY) -m benchmarks.forms $(ARGS)

bench-core: check-java $(STAMP) ## Measure spouts and bolts, tracked against untracked (ARGS=...)
	@$(PY) -m benchmarks.core $(ARGS)

bench-memory: check-java $(STAMP) ## Measure waves by what their bolt remembers (ARGS=...)
	@$(PY) -m benchmarks.bolt_memory $(ARGS)

bench-transactional: check-java $(STAMP) ## Measure four batches in flight against one (ARGS=...)
	@$(PY) -m benchmarks.transactional $(ARGS)

bench-windows: check-java $(STAMP) ## Measure windows of event time against Structured Streaming's (ARGS=...)
	@$(PY) -m benchmarks.windows $(ARGS)

bench-joins: check-java $(STAMP) ## Measure a table beside a stream against Structured Streaming's join (ARGS=...)
	@$(PY) -m benchmarks.joins $(ARGS)

bench-pressure: check-java $(STAMP) ## Measure batches that size themselves under a changing load, and draw it (ARGS=...)
	@$(PY) -m benchmarks.pressure $(ARGS)

bench-drpc: check-java $(STAMP) ## Measure DRPC point reads while a word count commits (ARGS=...)
	@$(PY) -m benchmarks.drpc $(ARGS)

bench-kafka: check-java $(STAMP) ## Measure reading a Kafka beside a bare consumer and Structured Streaming (ARGS=...)
	@$(PY) -m benchmarks.kafka $(ARGS)

bench-scale: check-java $(STAMP) ## Measure how a batch's cost grows with partitions, tasks and states (ARGS=...)
	@$(PY) -m benchmarks.scale $(ARGS)

bench-states: $(STAMP) ## Measure the states against the bare clients of their stores (ARGS=...)
	@$(PY) -m benchmarks.states $(ARGS)

bench-storm: check-java $(STAMP) ## Measure beside Apache Storm itself, in turns (STORM=folder with Storm's side, ARGS=...)
	@$(PY) -m benchmarks.storm --storm '$(STORM)' $(ARGS)

bench-files: $(STAMP) ## Measure looks for new files among many that were read (ARGS=...)
	@$(PY) -m benchmarks.files $(ARGS)

java: ## Install a Java 17 runtime with apt-get, if there is none
	@if scripts/check_java 2>/dev/null; then echo 'Java is there already.'; exit 0; fi; \
	sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo; \
	apt="$$sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq"; \
	$$apt update && { $$apt install --no-install-recommends openjdk-17-jre-headless || \
	$$apt install --no-install-recommends default-jre-headless; } && scripts/check_java

servers: ## Install Redis, memcached, PostgreSQL and RabbitMQ with apt-get, for the tests that need them
	@scripts/install_servers

kafka: ## Fetch Kafka with Maven, for the tests that need a broker
	@scripts/install_kafka

kafka-broker: PORT ?= 9092
kafka-broker: $(STAMP) kafka ## Run a Kafka broker on this machine until Ctrl-C (PORT=9092)
	@$(PY) -m tests.services.kafka_broker $(PORT)

browser: ## Install Chromium with apt-get, for the tests that look at the page
	@scripts/install_browser

screenshots: $(STAMP) ## Take pictures of every view of the page into build/screenshots; look at them before they go to docs/images
	@WATERSPOUT_SCREENSHOTS=build/screenshots $(PY) -m pytest -q -m soak tests/ui/test_browser.py

check-java:
	@scripts/check_java

lock: ## Resolve the dependencies anew into requirements.lock, with hashes
	@$(PYTHON) -c $(PYTHON_OK)
	@$(PYTHON) -m venv --clear .venv-lock
	@.venv-lock/bin/python -m pip install --quiet --disable-pip-version-check uv
	@{ printf '%s\n' \
	'# The versions that CI tested, for every Python and platform, with the hashes of their files.' \
	'# Made by `make lock`. With what builds waterspout itself: hatchling and editables.'; \
	printf '%s\n' 'hatchling>=1.27' editables | .venv-lock/bin/uv pip compile --quiet --universal \
	--python-version 3.11 --generate-hashes --extra dev --extra docs --no-header --no-annotate --no-emit-index-url \
	pyproject.toml -; } > requirements.lock.new
	@$(PYTHON) -c 'import os, shutil; os.replace("requirements.lock.new", "requirements.lock"); \
	shutil.rmtree(".venv-lock")'

audit: $(STAMP) ## Compare what is installed with the lock, and look for known vulnerabilities
	@[ -x .venv-audit/bin/pip-audit ] || { $(PYTHON) -m venv --clear .venv-audit && \
	.venv-audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit; }
	@$(PY) scripts/audit.py .venv-audit/bin/pip-audit

docs: $(STAMP) ## Build the site of the documents into build/site; warnings are errors
	@$(MKDOCS_OK)
	@NO_MKDOCS_2_WARNING=1 PYTHONPATH=src $(PY) -m mkdocs build --strict --quiet

docs-serve: $(STAMP) ## Show the site on loopback, and build it anew when a page changes
	@$(MKDOCS_OK)
	@NO_MKDOCS_2_WARNING=1 PYTHONPATH=src $(PY) -m mkdocs serve --dev-addr 127.0.0.1:8000

docs-tables: $(STAMP) ## Write the tables of the documents that are made from the code
	@PYTHONPATH=src $(PY) scripts/docs_tables.py

clean: ## Remove caches and build output; .venv stays
	@$(PYTHON) -c 'import pathlib, shutil; \
	names = [".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".venv-lock", ".venv-audit", "build", "dist"]; \
	roots = [pathlib.Path(d) for d in ("src", "tests", "benchmarks", "examples")]; \
	caches = [c for r in roots for c in [*r.rglob("__pycache__"), *r.glob("*.egg-info")]]; \
	[shutil.rmtree(p, ignore_errors=True) for p in [*names, *caches]]'
