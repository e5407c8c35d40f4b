# `make` lists the targets. Every target that needs the virtual environment makes it first.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# The first Python that is new enough; `make setup PYTHON=/path/to/python` overrides it.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo "$$p" && break; done)
VENV := .venv
RUN := $(VENV)/bin/python
STAMP := $(VENV)/.set-up
# Containers often ask for no compiled modules to be kept: then each process would compile all of ours again.
export PYTHONDONTWRITEBYTECODE :=
# The contracts are known as weir/rpc/*.proto, so that they never meet somebody else's package "proto".
GENERATE := -m grpc_tools.protoc -Iweir/rpc=proto
PROTO_FILES := $(patsubst proto/%,weir/rpc/%,$(wildcard proto/*.proto))
RESULTS := benchmarks/results

.PHONY: help setup java maven services stop-services demo etcd browser programs test check check-types check-others format proto verify-proto docs bench chaos experiments lock clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 18

setup: $(STAMP) ## Make .venv with the locked dependencies; only again when they changed

$(STAMP): requirements.lock pyproject.toml
	@if [ -z "$(PYTHON)" ]; then \
		echo "make setup: error: no Python 3.11 or newer found; install one, or run: make setup PYTHON=/path/to/python" >&2; \
		exit 1; \
	fi
	@"$(PYTHON)" -c 'import sys; v = sys.version.split()[0]; sys.version_info >= (3, 11) or sys.exit(f"make setup: error: Python 3.11 or newer is needed, $(PYTHON) is {v}; run: make setup PYTHON=/path/to/python")'
	@if ! $(RUN) -c 'import pip' 2>/dev/null; then \
		echo "setup: making $(VENV) with $$("$(PYTHON)" --version)"; \
		"$(PYTHON)" -m venv --clear $(VENV); \
	fi
	@echo "setup: installing the packages of requirements.lock (the first time takes a few minutes)"
	@$(RUN) -m pip install --disable-pip-version-check --no-input --progress-bar off -r requirements.lock \
		| awk '/^(Collecting|Building|Installing|Successfully)/ { print "  " substr($$0, 1, 100); fflush() }'
	@echo "setup: installing the project"
	@$(RUN) -m pip install --disable-pip-version-check --no-input --quiet --no-deps --editable .
	@echo "setup: compiling the kernels"
	@$(RUN) -m weir compile
	@touch $@
	@echo "setup: done"

# Before minutes of set-up; the demo itself looks closer. Spark needs Java 17 or newer; which one a distribution has differs.
JAVA_PACKAGES := openjdk-17-jre-headless openjdk-21-jre-headless openjdk-25-jre-headless
java:
	@if [ -n "$${JAVA_HOME:-}" ] || command -v java >/dev/null; then exit 0; fi; \
	install() { for p in $(JAVA_PACKAGES); do apt-get install -y -q --no-install-recommends "$$p" && return; done; return 1; }; \
	if command -v apt-get >/dev/null; then \
		echo "java: Spark needs Java; installing a runtime with apt-get"; \
		(install || (apt-get update -q && install)) >/dev/null 2>&1 || true; \
	fi; \
	command -v java >/dev/null || { \
		echo "make: error: Spark needs Java, and there is no java on PATH and no JAVA_HOME: install a Java 17+ runtime" \
			"(Debian: apt-get install openjdk-17-jre-headless)" >&2; \
		exit 1; }

# Their jars come from Maven, once.
maven: java
	@command -v mvn >/dev/null || { echo "maven: installing maven with apt-get"; \
		(apt-get install -y -q --no-install-recommends maven || (apt-get update -q && apt-get install -y -q --no-install-recommends maven)) >/dev/null 2>&1; } \
		|| { echo "make: error: the jars of Kafka and Cassandra need mvn on PATH (Debian: apt-get install maven)" >&2; exit 1; }

services: maven setup ## Start a real Kafka (localhost:9092) and a real Cassandra (localhost:9042); stop-services deletes them
	@$(RUN) -m services kafka start
	@# What the examples read by default: they answer at once.
	@$(RUN) -m services kafka fill streams-plaintext-input weir/examples/countries.txt
	@$(RUN) -m services kafka fill countries weir/examples/european_union.jsonl
	@$(RUN) -m services cassandra start

stop-services: setup ## Stop what `services` started, and delete its data
	@$(RUN) -m services kafka stop --wipe
	@$(RUN) -m services cassandra stop --wipe

demo: java setup ## Generate events, run the demo job on real processes, print latencies and draw them
	@$(RUN) -m experiments.demo

NO_PROCESS := not scenario and not spark and not service
test: setup ## Everything that `check` does, then all tests, three at a time
	@# Programs are fetched while the processors check.
	@$(MAKE) -j 3 check-types check-others programs
	$(RUN) -m pytest -n 3 -m "$(NO_PROCESS)"
	$(RUN) -m pytest -n 3 --dist loadfile -m "not ($(NO_PROCESS))" --durations=25

# One after the other: apt-get runs once at a time.
programs:
	@$(MAKE) etcd
	@# Without Maven the tests of Kafka and Cassandra are skipped, and say so.
	@$(MAKE) maven || true
	@# Without a browser the tests of the page are skipped, and say so.
	@$(MAKE) browser || true

# The tests of leader election start a real etcd; Debian has it as a package.
etcd:
	@command -v etcd >/dev/null || { echo "test: installing etcd-server with apt-get"; \
		(apt-get install -y -q etcd-server || (apt-get update -q && apt-get install -y -q etcd-server)) >/dev/null 2>&1; } \
		|| { echo "make test: error: the tests need etcd on PATH (Debian: apt-get install etcd-server)" >&2; exit 1; }

# The page is looked at in a real browser; Debian has it and what drives it as packages.
browser:
	@command -v chromedriver >/dev/null && command -v chromium >/dev/null && exit 0; \
	install() { apt-get install -y -q --no-install-recommends chromium chromium-driver fonts-dejavu-core; }; \
	echo "browser: installing chromium with apt-get"; \
	(install || (apt-get update -q && install)) >/dev/null 2>&1 \
		|| { echo "make: error: the tests of the page need chromium and chromedriver on PATH" \
			"(Debian: apt-get install chromium chromium-driver)" >&2; exit 1; }

check: setup ## Format, lint, types, import rules, circles, docstrings, generated code
	@# mypy takes one core, and longer than all others together.
	@$(MAKE) -j 2 check-types check-others

check-types:
	$(VENV)/bin/mypy

check-others:
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/ruff check
	$(VENV)/bin/lint-imports
	$(VENV)/bin/lint-imports --config floors.toml
	$(RUN) tests/style/docstrings.py
	$(RUN) tests/style/circles.py
	@$(MAKE) verify-proto

format: setup ## Format the code and mend what the linter can mend
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format

proto: setup ## Generate the Python code of proto/*.proto
	$(RUN) $(GENERATE) --python_out=. --pyi_out=. --grpc_python_out=. $(PROTO_FILES)

verify-proto: setup ## Fail if the committed generated code is not what proto/*.proto generate
	@out=$$(mktemp -d); trap 'rm -rf "$$out"' EXIT; \
	$(RUN) $(GENERATE) --python_out="$$out" --pyi_out="$$out" --grpc_python_out="$$out" $(PROTO_FILES); \
	for file in $$( (ls weir/rpc/*_pb2*; cd "$$out"; ls weir/rpc/*_pb2*) | sort -u); do \
		cmp -s "$$out/$$file" "$$file" \
			|| { echo "verify-proto: error: $$file is not what the .proto files generate; run: make proto" >&2; exit 1; }; \
	done; \
	echo "verify-proto: generated code is up to date"

docs: setup ## Write the pages that are made from the code
	$(RUN) -m pages configuration > docs/configuration.md
	$(RUN) -m pages metrics > docs/metrics.md
	$(RUN) -m pages alerts > docs/monitoring/alerts.yml
	$(RUN) -m pages dashboard > docs/monitoring/dashboard.json

bench: java setup ## Run all benchmarks (two hours), keep results in benchmarks/results, write docs/performance.md
	$(RUN) -m benchmarks startup --json $(RESULTS)/start_up.json
	$(RUN) -m benchmarks throughput --compare-events 30000000 --json $(RESULTS)/throughput.json
	$(RUN) -m benchmarks throughput --one-core --json $(RESULTS)/throughput_one_core.json
	$(RUN) -m benchmarks latency --json $(RESULTS)/latency_10000.json
	for rate in 0 100 1000 100000; do \
		$(RUN) -m benchmarks latency --rate $$rate --json $(RESULTS)/latency_$$rate.json || exit 1; done
	$(RUN) -m benchmarks state --json $(RESULTS)/state.json
	$(RUN) -m benchmarks transport --json $(RESULTS)/transport.json
	$(RUN) -m benchmarks wide_job --rate 200 --json $(RESULTS)/wide_job_200.json
	$(RUN) -m benchmarks wide_job --rate 10000 --json $(RESULTS)/wide_job_10000.json
	$(RUN) -m benchmarks overload --json $(RESULTS)/overload.json
	$(RUN) -m benchmarks wide_rows --json $(RESULTS)/wide_rows.json
	$(RUN) -m benchmarks bad_input --json $(RESULTS)/bad_input.json
	for strategy in local hybrid migrate; do \
		$(RUN) -m benchmarks rescale --strategy $$strategy --json $(RESULTS)/rescale_$$strategy.json; \
	done
	$(RUN) -m benchmarks rescale --state-bytes 1e8 --json $(RESULTS)/rescale_migrate_100_mb.json
	$(RUN) -m benchmarks rescale --scale-in --json $(RESULTS)/rescale_in_migrate.json
	$(RUN) -m benchmarks rescale --steady --json $(RESULTS)/rescale_steady.json
	$(RUN) -m benchmarks checkpoint --json $(RESULTS)/checkpoint.json
	$(RUN) -m benchmarks recovery --json $(RESULTS)/recovery.json
	$(RUN) -m benchmarks joins --json $(RESULTS)/joins.json
	$(RUN) -m benchmarks windows --json $(RESULTS)/windows.json
	$(RUN) -m benchmarks windows --sessions --session-keys 10000000 --gap-s 60 --seconds 600 --json $(RESULTS)/sessions.json
	$(RUN) -m benchmarks nexmark --json $(RESULTS)/nexmark.json
	$(RUN) -m benchmarks peers --json $(RESULTS)/peers.json
	$(RUN) -m benchmarks report

chaos: java setup ## Kill, pause, cut off, fill disks and rescale for 20 minutes; Spark verifies what was delivered
	$(RUN) -m experiments chaos --minutes 20 --every-s 5 --out data/chaos --json data/chaos.json
	$(RUN) -m workload.verify data/chaos

experiments: java setup ## Run the latency experiments (13 minutes) into zout, write docs/experiments.md and its picture
	$(RUN) -m experiments run seeds --out zout
	$(RUN) -m experiments report
	$(RUN) plot.py zout/local*.txt zout/hybrid*.txt --out plots/predecessor --overwrite
	$(RUN) plot.py zout/calm_*.txt --out plots/calm --overwrite
	cp plots/predecessor/all_runs.png docs/images/experiments.png
	cp plots/calm/all_runs.png docs/images/experiments_calm.png

lock: setup ## Write requirements.lock anew from pyproject.toml
	$(VENV)/bin/uv pip compile --universal --python-version 3.11 --no-emit-index-url \
		--group workload --group dev pyproject.toml -o requirements.lock

clean: ## Remove caches and build products (not .venv, data, zout or plots)
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist *.egg-info
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
