# Two commands do everything on a machine with Python 3.11 and make: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUN := $(BIN)/dpdist
export PYTHONDONTWRITEBYTECODE :=  # set in many containers: every process would compile all that it imports

.PHONY: help setup tools demo check test slow processors interpreters quick lint site wheel manifests e2e e2e-kubernetes lock bench compare clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-14s %s\n", $$1, $$2}'

UV = $(BIN)/uv pip
# not compiled; what fails to compile elsewhere are templates that packages ship
RARE := tests|apprise|cfnlint|dateparser|debugpy|fontTools|graphql|hive_metastore|jedi|moto|mypy|networkx|pip|setuptools|sympy
PROJECT = $(UV) install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .

$(VENV)/.runs: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	@echo "==> what dpdist itself needs, into $(VENV) (0.6 GB)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(UV) install --python $(BIN)/python --require-hashes --constraint requirements.lock --requirement pyproject.toml --group build
	@$(PROJECT)
	@touch $@

$(VENV)/.ready: $(VENV)/.runs
	@echo "==> what tests, documents and evaluations need as well, into $(VENV) (2 GB in all)"
	@$(UV) sync --python $(BIN)/python --require-hashes requirements.lock
	@echo "==> compiled once for all processes, but for the third of the files that hardly any imports"
	@$(BIN)/python -m compileall -qq -j 0 -x '/($(RARE))/' $(VENV)/lib || true
	@$(PROJECT)
	@touch $@

setup: $(VENV)/.ready ## install into .venv what the lock file names

demo: $(VENV)/.runs ## release a made-up census table on an embedded cluster
	@rm -rf demo && mkdir -p demo
	@echo "==> a made-up census table of 300,000 rows"
	@$(RUN) sample demo/census --rows 300000
	@echo "==> a data set with a budget"
	@$(RUN) ledger create demo --epsilon 4 --delta 1e-8 --ledger sqlite:///demo/ledger.db
	@echo "==> what the release would cost"
	@$(RUN) plan deploy/releases/demo.yaml
	@echo "==> the release: records drawn from a model"
	@$(RUN) release deploy/releases/demo.yaml
	@$(RUN) verify demo/release --public-key demo/ledger.db.demo.pub.pem
	@echo "==> another one: records that keep values of true records, through the privacy test"
	@$(RUN) release deploy/releases/demo-seeds.yaml
	@$(RUN) verify demo/release-with-seeds --ledger sqlite:///demo/ledger.db

tools: .tools/.ready ## install into .tools what checks the chart and the image

.tools/.ready: tests/deploy/tools.lock $(VENV)/.ready
	@echo "==> what checks the chart and the image, into .tools (0.4 GB)"
	@rm -rf .tools
	@$(UV) install --quiet --python $(BIN)/python --target .tools --no-deps --require-hashes -r tests/deploy/tools.lock
	@touch $@

CHECKED := $(addprefix tests/,test_documents.py contract/test_families.py data privacy publish spec storage)

test slow e2e: export NO_PROXY := $(NO_PROXY),127.0.0.1,localhost
test slow e2e: export no_proxy := $(no_proxy),127.0.0.1,localhost
# memory that one thread leaves is there for the others: else each process of the suite grows by half
test slow: export MALLOC_ARENA_MAX := 1
test slow: export ARROW_DEFAULT_MEMORY_POOL := system

# two processes more than cores: tests of faults and of servers wait for what they started or broke
SPREAD = --numprocesses $$(($$($(BIN)/python -c 'import os; print(os.cpu_count())') + 2)) --dist loadfile --no-loadscope-reorder

test: setup tools ## run the test suite
	@$(BIN)/python -m pytest $(SPREAD) -m "not slow"

slow: setup tools ## attacks by many runs, faults at every moment, flows on a Prefect server
	@$(BIN)/python -m pytest $(SPREAD) -m slow

OTHERS := 3.12 3.13 3.14
QUICK := --quiet -m "not slow" -k "not postgresql and not address"

interpreters: ## tests of every kind, without servers, on each other Python that is installed
	@for version in $(OTHERS); do \
		for python in $$(command -v python$$version) $$HOME/.pyenv/versions/$$version.*/bin/python ""; do \
			"$$python" -c "" 2>/dev/null && break; \
		done; \
		if [ -z "$$python" ]; then echo "left out without Python $$version"; continue; fi; \
		$(MAKE) --no-print-directory PYTHON=$$python VENV=.venv/$$version quick || exit 1; \
	done

quick: setup
	@$(BIN)/python -m pytest $(SPREAD) $(QUICK) $(CHECKED) $(addprefix tests/,cli api release)

check: lint ## lint, types and the tests of a minute: nothing that starts a server or a cluster
	@$(BIN)/python -m pytest $(SPREAD) --quiet -m "not slow" \
		-k "not postgresql and not embedded and not address" $(CHECKED)

processors: setup ## releases where NumPy, OpenBLAS and the C library take the code of other processors
	@$(BIN)/python tests/contract/processors.py

lint: setup ## formatting, style, types and layers
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

site: setup ## the documents as a site in site/, with the reference and the notebooks executed
	@PYTHONPATH=. NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 $(BIN)/python -m mkdocs build --quiet --strict

wheel: setup ## build the wheel, and run the tutorial with it in an empty environment
	@rm -rf dist && $(BIN)/python -m hatchling build --target wheel
	@$(BIN)/python tests/wheel.py dist/*.whl

manifests: setup tools ## write deploy/kubernetes from the chart
	@$(BIN)/python deploy/kubernetes/render.py

e2e: setup ## the whole thing on real servers: PostgreSQL, Ceph, Prefect, Dask with TLS (installs them by apt, as root)
	@$(BIN)/python tests/e2e/run.py
	@$(BIN)/python tests/e2e/federated.py
	@$(BIN)/python tests/e2e/mailbox.py --s3

e2e-kubernetes: setup ## every mode of the chart on a real Kubernetes node (Debian, root); DPDIST_NODE names the script that starts it
	@$(BIN)/python tests/e2e/kubernetes.py

lock: setup ## resolve the dependencies again
	@$(UV) compile --quiet --python-version 3.11 --universal --generate-hashes --no-emit-index-url --no-header --no-annotate \
		--extra flows --extra evaluate --extra docs --extra readers --group dev pyproject.toml --output-file requirements.lock
	@$(UV) compile --quiet --python-version 3.11 --universal --generate-hashes --no-emit-index-url --no-header --no-annotate \
		--extra flows --extra evaluate --extra lineage --constraint requirements.lock pyproject.toml deploy/image.in --output-file deploy/image.lock

bench: setup ## speed, memory and quality (writes bench/*.json), but for hours of mixing; needs ../shared/data or DPDIST_DATA
	@mkdir -p bench
	@for script in $(filter-out %/bench_mixing_quality.py,$(wildcard tests/benchmarks/bench_*.py)); do \
		$(BIN)/python $$script --json bench/$$(basename $$script .py).json || exit 1; done

compare: setup ## ours beside other packages, each in an environment of its own (writes bench/compare.json); takes an hour
	@$(BIN)/python tests/benchmarks/peers/run.py --json bench/compare.json

clean: ## remove what the targets above made
	@rm -rf demo bench dist site $(VENV) .tools .pytest_cache .mypy_cache .ruff_cache .hypothesis
