# `make demo` and `make test` do all of their own set-up.
.PHONY: demo test lint types bench docs release faults fuzz soak findings clean help
.DEFAULT_GOAL := help

BIN := .venv/bin
# Tests wait more than they work, so there are more processes than cores; those of Spark share one (tests/conftest.py).
PROCESSES ?= 4
SPARK_NEXT ?= pyspark==4.3.*
SPACE := $() $()
# Words of one name, or names with "or" between them.
CHOSEN = $(if $(findstring $(SPACE)or$(SPACE),$(CASE)),$(CASE),$(subst $(SPACE),_,$(CASE)))
# Each process of the tests imports all of them, and they start agents and jobs by the hundred: what is compiled is kept,
# also where the environment says not to.
export PYTHONDONTWRITEBYTECODE :=

help:
	@echo "make demo    a hub, two leaves, three agents, faults, Spark jobs and the proof (about two minutes)"
	@echo "make demo HUBS=3   the same with a hub of three machines, of which one is killed"
	@echo "make test    style, types and all tests (about eleven minutes)"
	@echo "make test SUITE=…  a suite that is no part of it, or only in part:"
	@echo "    models      the state machines, with EXAMPLES=1000 examples each"
	@echo "    properties  all examples of the properties and machines, of which make test plays a share"
	@echo "    security    every subject and endpoint with every key, and planted secrets in no output; WRITE=1 writes the table"
	@echo "    wheel       the wheel in an empty environment: the first hour and the demonstration (six to nine minutes)"
	@echo "    package     the Debian package in a clean Debian, under systemd (root; a few minutes)"
	@echo "    deploy      what Prometheus says of the metrics and rules (promtool)"
	@echo "    browser     the fleet page in a headless Chromium; PICTURES=docs/images also saves the pictures"
	@echo "    connect     every job on a server of Spark Connect, as without it"
	@echo "    delta       Spark with Delta's own jar reads and rewrites the tables (three minutes)"
	@echo "    lakes       lakes at Azure and Google, as others imitate them (npm, Go; ten minutes)"
	@echo "    spark-next  the tests of Spark with PySpark 4.3, in an environment of its own (ten minutes)"
	@echo "make lint    style"
	@echo "make types   types"
	@echo "make fuzz    every parser of outside bytes, SECONDS=60 of it in all; build/fuzz/found/"
	@echo "make faults  every fault, or those of CASE=… (words of its name), SEED=…; build/faults/report.json"
	@echo "make faults CASE=mixed ROUNDS=n SEED=s  n rounds of two faults that meet, drawn from seed s on"
	@echo "make faults KEEP=1   keep that report and write its table into docs/proof.md"
	@echo "make soak    HOURS=n of load and faults; what the processes hold, build/soak/report.json and soak.svg"
	@echo "make findings  what surprised in nats-server and other software, run again (no part of make test; ten minutes)"
	@echo "make bench   every benchmark, or those of NAME=…; results under build/bench/"
	@echo "make bench KEEP=1    keep what was run since in bench/results/, and write its table into docs/proof.md"
	@echo "make docs    the documents as a site with search, build/site; every link and command checked"
	@echo "make docs WRITE=reference|recording  docs/configuration.md, or the recorded terminal of README.md (two minutes)"
	@echo "make release every file of a release, with checksums, in dist/; IMAGES=1 with the container images"
	@echo "make release ONLY=wheel|dist|deb|image  the wheel and source archive, the jobs packed for a Spark cluster, the"
	@echo "             Debian package, or the container image (root; mmdebstrap, buildah)"
	@echo "make clean   remove what was built, keep .venv"

.venv/wheel .venv/demo .venv/ready: pyproject.toml deploy/constraints.txt deploy/prepare.sh
	@deploy/prepare.sh $(@F)

# A .venv of another Python than PYTHON=… names is made again.
ifdef PYTHON
ifneq ($(shell PYTHON='$(PYTHON)' deploy/prepare.sh python),same)
.PHONY: .venv/wheel .venv/demo .venv/ready
endif
endif

demo: .venv/demo
	@$(BIN)/petiole demo $(if $(HUBS),--hubs $(HUBS))

# The suites: how each is run, and what it needs where that is not .venv/ready.
# The machines against which links, publishing, reading and counting are played, beside each other.
MODELS := tests/unit/models tests/unit/leaf/inputs/file/test_generations.py tests/unit/leaf/link/test_model.py tests/unit/leaf/ledger/evictions/test_model.py
PYTEST := $(BIN)/python -m pytest
SUITE_models = EXAMPLES=$(or $(EXAMPLES),1000) $(PYTEST) --timeout 0 --numprocesses $(PROCESSES) $(MODELS)
# All that Hypothesis plays, each with its whole count (tests/harness/examples.py).
SUITE_properties = EXAMPLES=all $(PYTEST) --numprocesses $(PROCESSES) -m hypothesis tests/unit
# `make test` runs most of it. WRITE=1 after a wanted change of what somebody may do: read what `git diff` shows.
SUITE_security = $(if $(WRITE),PETIOLE_WRITE=1 $(PYTEST) --quiet tests/security/test_subjects.py -k nothing_gets_through,PETIOLE_SECURITY=whole $(PYTEST) tests/security)
SUITE_wheel = $(PYTEST) --timeout 1800 tests/package/test_wheel.py
NEEDS_wheel := .venv/wheel
SUITE_package = $(PYTEST) --timeout 1800 tests/package --ignore tests/package/test_wheel.py
SUITE_deploy = $(PYTEST) tests/deploy
SUITE_browser = $(PYTEST) tests/browser
# `make test` runs ingest and refine on such a server, and kills it under a job.
SUITE_connect = $(PYTEST) tests/connect
# The jars come from Maven Central once, and stay in build/ivy.
SUITE_delta = $(PYTEST) tests/delta
# The stores are fetched once, into .venv.
SUITE_lakes = deploy/prepare_lakes.sh && $(PYTEST) tests/lakes
SUITE_spark-next = build/spark-next/bin/python -m pytest -n 2 tests/spark tests/connect
NEEDS_spark-next := build/spark-next/ready

ifdef SUITE
ifndef SUITE_$(SUITE)
$(error there is no suite $(SUITE); make help lists them)
endif
endif

define WHOLE
$(MAKE) --no-print-directory lint
@$(MAKE) --no-print-directory --jobs 2 types .venv/compiled
@$(PYTEST) --numprocesses $(PROCESSES)
endef

test: $(or $(NEEDS_$(SUITE)),.venv/ready)
	@$(if $(SUITE),$(SUITE_$(SUITE)),$(WHOLE))

# Beside the types, which take one core, so that the processes of the tests do not all compile the same files at once.
.venv/compiled: | .venv/ready
	@$(PYTEST) --collect-only --quiet --quiet >/dev/null || true
	@touch $@

# The tests of Spark with the PySpark after the one that `petiole[hub]` installs; all else is that of .venv.
build/spark-next/ready: .venv/ready
	@rm -rf build/spark-next && $(BIN)/python -m venv build/spark-next
	@build/spark-next/bin/python -m pip install --quiet --disable-pip-version-check '$(SPARK_NEXT)'
	@$(BIN)/python -c 'import sys; print(*(path for path in sys.path if "site-packages" in path), sep="\n")' \
		> "$$(ls -d build/spark-next/lib/python*/site-packages)/petiole.pth"
	@pwd >> "$$(ls -d build/spark-next/lib/python*/site-packages)/petiole.pth"
	@ln -s "$(CURDIR)/$(BIN)/nats-server" "$(CURDIR)/$(BIN)/petiole" build/spark-next/bin/
	@touch $@

lint: .venv/ready
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .

types: .venv/ready
	@$(BIN)/mypy

fuzz: .venv/ready
	@$(BIN)/python -c "import atheris" 2>&- || $(BIN)/python -m pip install --quiet -e ".[fuzz]"
	@$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),60)
	@$(BIN)/python -m tests.fuzz.cost --seconds $(or $(SECONDS),60)

faults: .venv/ready
	@$(if $(KEEP),$(BIN)/python -m tests.faults.page,SEED=$(SEED) ROUNDS=$(ROUNDS) $(PYTEST) --timeout 1800 tests/faults $(if $(CASE),-k "$(CHOSEN)"))

# A constant load with faults that SEED decides; build/soak/report.json and soak.svg.
soak: .venv/ready
	@HOURS=$(or $(HOURS),0.25) SEED=$(SEED) $(PYTEST) --timeout 0 tests/soak

# What surprised in nats-server and other software: each script installs its packages itself, and fails once they change.
findings:
	@failed=0; for script in findings/*.sh; do echo "$$script"; "$$script" || failed=1; done; exit $$failed

bench: .venv/ready
	@$(BIN)/python -m $(if $(KEEP),bench.report,bench $(NAME))

WRITE_reference = -m deploy.reference
# The picture of the terminal in README.md, from a run of the demonstration.
WRITE_recording = -m deploy.recording docs/images/demo.svg "make demo" $(BIN)/petiole demo
define SITE
$(BIN)/python -c "import material, mkdocs" 2>&- || $(BIN)/python -m pip install --quiet -e ".[docs]"
@$(PYTEST) --quiet $(addprefix tests/docs/test_,$(addsuffix .py,pages commands_in_documents))
@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
@$(PYTEST) --quiet tests/site
@echo "to read it: python3 -m http.server --directory build/site"
endef
docs: .venv/ready
	@$(if $(WRITE),$(BIN)/python $(WRITE_$(WRITE)),$(SITE))

release: $(if $(filter wheel,$(ONLY)),.venv/wheel,.venv/ready)
	@$(BIN)/python -m deploy.$(or $(ONLY),release) $(if $(IMAGES),--images)

clean:
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
