# `make demo` and `make test` do all of their own set-up.
.PHONY: help demo test lint types models properties fuzz faults bench bench-report dist wheel deb image release reference
# `docs` is a folder, too.
.PHONY: docs soak test-wheel test-package test-deploy test-browser test-connect test-delta test-lakes test-spark-next test-security security-table recording
.PHONY: faults-page findings clean

BIN := .venv/bin
# Tests wait more than they work, so there are more processes than cores; those of Spark share one (tests/conftest.py).
PROCESSES ?= 4
SPARK_NEXT ?= pyspark==4.3.*
SPACE := $() $()
# Words of one name, or names with "or" between them.
CHOSEN = $(if $(findstring $(SPACE)or$(SPACE),$(CASE)),$(CASE),$(subst $(SPACE),_,$(CASE)))

help:
	@echo "make demo    a hub, two leaves, three agents, faults, Spark jobs and the proof (about two minutes)"
	@echo "make demo HUBS=3   the same with a hub of three machines, of which one is killed"
	@echo "make test    style, types and all tests (about eleven minutes)"
	@echo "make models  the state machines, with EXAMPLES=1000 examples each"
	@echo "make properties  all examples of the properties and machines, of which make test plays a share"
	@echo "make fuzz    every parser of outside bytes, SECONDS=60 of it in all; build/fuzz/found/"
	@echo "make faults  every fault, or those of CASE=… (words of its name), SEED=…; build/faults/report.json"
	@echo "make faults CASE=mixed ROUNDS=n SEED=s  n rounds of two faults that meet, drawn from seed s on"
	@echo "make faults-page  keep that report, and write its table into docs/proof.md"
	@echo "make soak    HOURS=n of load and faults; what the processes hold, build/soak/report.json and soak.svg"
	@echo "make findings  what surprised in nats-server and other software, run again (no part of make test; ten minutes)"
	@echo "make bench   every benchmark, or those of NAME=…; results under build/bench/"
	@echo "make bench-report  keep newer results in bench/results/, and write their table into docs/proof.md"
	@echo "make dist    the jobs and their Python, packed for a Spark cluster, in dist/"
	@echo "make wheel   the wheel and the source archive, in dist/"
	@echo "make deb     the Debian package of the agent, in dist/"
	@echo "make docs    the documents as a site with search, build/site; every link and command checked"
	@echo "make image   the container image of the agent, in dist/ (root; mmdebstrap, buildah)"
	@echo "make release every file of a release, with checksums, in dist/; IMAGES=1 with the container images"
	@echo "make reference  docs/configuration.md, from the types of the configuration"
	@echo "make test-security  every subject and endpoint with every key, and planted secrets in no output"
	@echo "make test-wheel    the wheel in an empty environment: the first hour and the demonstration (six to nine minutes)"
	@echo "make test-package  the Debian package in a clean Debian, under systemd (root; a few minutes)"
	@echo "make test-deploy   what Prometheus says of the metrics and rules (promtool)"
	@echo "make test-browser  the fleet page in a headless Chromium"
	@echo "make test-connect  every job on a server of Spark Connect, as without it"
	@echo "make test-delta    Spark with Delta's own jar reads and rewrites the tables (three minutes)"
	@echo "make test-lakes    lakes at Azure and Google, as others imitate them (npm, Go; ten minutes)"
	@echo "make test-spark-next  the tests of Spark with PySpark 4.3, in an environment of its own (ten minutes)"
	@echo "make recording     the recorded terminal of README.md (two minutes)"
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

# Each process of the tests imports all of them, and they start agents and jobs by the hundred: what is compiled is kept,
# also where the environment says not to.
test: export PYTHONDONTWRITEBYTECODE :=
test: lint
	@$(MAKE) --no-print-directory --jobs 2 types .venv/compiled
	@$(BIN)/python -m pytest --numprocesses $(PROCESSES)

# Beside the types, which take one core, so that the processes of the tests do not all compile the same files at once.
.venv/compiled: | .venv/ready
	@$(BIN)/python -m pytest --collect-only --quiet --quiet >/dev/null || true
	@touch $@

lint: .venv/ready
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .

types: .venv/ready
	@$(BIN)/mypy

# The machines against which links, publishing, reading and counting are played, beside each other.
MODELS := tests/unit/models tests/unit/leaf/inputs/file/test_generations.py tests/unit/leaf/link/test_model.py tests/unit/leaf/ledger/evictions/test_model.py
models: .venv/ready
	@EXAMPLES=$(or $(EXAMPLES),1000) $(BIN)/python -m pytest --timeout 0 --numprocesses $(PROCESSES) $(MODELS)

# All that Hypothesis plays, each with its whole count (tests/harness/examples.py).
properties: .venv/ready
	@EXAMPLES=all $(BIN)/python -m pytest --numprocesses $(PROCESSES) -m hypothesis tests/unit

fuzz: .venv/ready
	@$(BIN)/python -c "import atheris" 2>&- || $(BIN)/python -m pip install --quiet -e ".[fuzz]"
	@$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),60)
	@$(BIN)/python -m tests.fuzz.cost --seconds $(or $(SECONDS),60)

faults: .venv/ready
	@SEED=$(SEED) ROUNDS=$(ROUNDS) $(BIN)/python -m pytest --timeout 1800 tests/faults $(if $(CASE),-k "$(CHOSEN)")

faults-page: .venv/ready
	@$(BIN)/python -m tests.faults.page

bench: .venv/ready
	@$(BIN)/python -m bench $(NAME)

bench-report: .venv/ready
	@$(BIN)/python -m bench.report

dist: .venv/ready
	@$(BIN)/python -m deploy.dist

wheel: .venv/wheel
	@$(BIN)/python -m deploy.wheel

deb: .venv/ready
	@$(BIN)/python -m deploy.deb

docs: .venv/ready
	@$(BIN)/python -c "import material, mkdocs" 2>&- || $(BIN)/python -m pip install --quiet -e ".[docs]"
	@$(BIN)/python -m pytest --quiet $(addprefix tests/docs/test_,$(addsuffix .py,pages commands_in_documents))
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@$(BIN)/python -m pytest --quiet tests/site
	@echo "to read it: python3 -m http.server --directory build/site"

image: .venv/ready
	@$(BIN)/python -m deploy.image

release: .venv/ready
	@$(BIN)/python -m deploy.release $(if $(IMAGES),--images)

reference: .venv/ready
	@$(BIN)/python -m deploy.reference

# What surprised in nats-server and other software: each script installs its packages itself, and fails once they change.
findings:
	@failed=0; for script in findings/*.sh; do echo "$$script"; "$$script" || failed=1; done; exit $$failed

# Every subject and every endpoint with every key, and no secret in any output; `make test` runs most of it.
test-security: .venv/ready
	@PETIOLE_SECURITY=whole $(BIN)/python -m pytest tests/security

# After a wanted change of what somebody may do: read what `git diff` shows.
security-table: .venv/ready
	@PETIOLE_WRITE=1 $(BIN)/python -m pytest --quiet tests/security/test_subjects.py -k nothing_gets_through

test-wheel: .venv/wheel
	@$(BIN)/python -m pytest --timeout 1800 tests/package/test_wheel.py

test-package: .venv/ready
	@$(BIN)/python -m pytest --timeout 1800 tests/package --ignore tests/package/test_wheel.py

test-deploy: .venv/ready
	@$(BIN)/python -m pytest tests/deploy

# A constant load with faults that SEED decides; build/soak/report.json and soak.svg.
soak: .venv/ready
	@HOURS=$(or $(HOURS),0.25) SEED=$(SEED) $(BIN)/python -m pytest --timeout 0 tests/soak

# With PICTURES=docs/images it also saves what the documents show.
test-browser: .venv/ready
	@$(BIN)/python -m pytest tests/browser

# `make test` runs ingest and refine on such a server, and kills it under a job.
test-connect: .venv/ready
	@$(BIN)/python -m pytest tests/connect

# The jars come from Maven Central once, and stay in build/ivy.
test-delta: .venv/ready
	@$(BIN)/python -m pytest tests/delta

# The stores are fetched once, into .venv.
test-lakes: .venv/ready
	@deploy/prepare_lakes.sh
	@$(BIN)/python -m pytest tests/lakes

# The tests of Spark with the PySpark after the one that `petiole[hub]` installs; all else is that of .venv.
build/spark-next/ready: .venv/ready
	@rm -rf build/spark-next && $(BIN)/python -m venv build/spark-next
	@build/spark-next/bin/python -m pip install --quiet --disable-pip-version-check '$(SPARK_NEXT)'
	@$(BIN)/python -c 'import sys; print(*(path for path in sys.path if "site-packages" in path), sep="\n")' \
		> "$$(ls -d build/spark-next/lib/python*/site-packages)/petiole.pth"
	@pwd >> "$$(ls -d build/spark-next/lib/python*/site-packages)/petiole.pth"
	@ln -s "$(CURDIR)/$(BIN)/nats-server" "$(CURDIR)/$(BIN)/petiole" build/spark-next/bin/
	@touch $@

test-spark-next: build/spark-next/ready
	@build/spark-next/bin/python -m pytest -n 2 tests/spark tests/connect

# The picture of the terminal in README.md, from a run of the demonstration.
recording: .venv/ready
	@$(BIN)/python -m deploy.recording docs/images/demo.svg "make demo" $(BIN)/petiole demo

clean:
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
