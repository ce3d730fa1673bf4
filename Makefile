# Every target that needs .venv makes it, with requirements/install.sh; that takes minutes once and no time afterwards.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup quickstart test test-faults test-harnesses test-cluster lint lock clean

PACKAGES := tidemill operator rollout trainer cell bench helm
EXTRAS := cluster operator rollout trainer cell traces tasks cpu dev
CELL_EXTRAS := rollout trainer cell
ARGS ?=

help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## make .venv: Python, the locked packages, this project
	@requirements/install.sh

quickstart: setup ## train a real model with real agents on this machine, in a new folder under runs/
	@folder=runs/quickstart; n=1; \
	while [ -n "$$(ls -A "$$folder" 2>/dev/null)" ]; do n=$$((n + 1)); folder=runs/quickstart-$$n; done; \
	if [ "$$n" -gt 1 ]; then echo "runs/quickstart is taken by an earlier run: this one goes to $$folder"; fi; \
	.venv/bin/tidemill run examples/quickstart/rljob.yaml --workdir "$$folder" $(ARGS)

test: setup ## run the tests, three at a time; ARGS="-k waterlevel" is handed to pytest; the first time builds an API server
	@$(if $(ARGS),,.venv/bin/python -m tests.cluster.programs api)
	@.venv/bin/pytest --numprocesses 3 $(ARGS)

test-faults: setup ## run whole jobs on this machine while their processes are killed, their disk fills up and their harnesses misbehave
	@.venv/bin/pytest tests/faults $(ARGS)

test-harnesses: setup ## run the agent programs that people use, as their registries have them; the first time installs them
	@.venv/bin/pytest tests/harnesses $(ARGS)

test-cluster: setup ## run the tests that need nodes: two real ones on this machine, as root; the first time builds Kubernetes
	@.venv/bin/python -m tests.cluster.machine
	@.venv/bin/python -m tests.cluster.programs
	@.venv/bin/pytest tests/cluster/node $(ARGS)

lint: setup ## ruff, mypy (strict), import rules
	@.venv/bin/ruff check
	@.venv/bin/ruff format --check
	@.venv/bin/mypy $(PACKAGES)
	@.venv/bin/lint-imports

lock: setup ## resolve requirements/*.in and the images' locks anew, keeping versions that still fit; ARGS=--upgrade takes the newest
	@uv="$$(command -v "$${XDG_CACHE_HOME:-$$HOME/.cache}/tidemill/installer/bin/uv" || command -v uv)"; \
	compile="$$uv pip compile --quiet --python-platform x86_64-manylinux_2_28 --generate-hashes --no-emit-index-url $(ARGS)"; \
	export UV_CUSTOM_COMPILE_COMMAND="make lock"; \
	$$compile --python-version 3.8 requirements/installer.in -o requirements/installer.lock; \
	$$compile --python-version 3.12 requirements/go.in -o requirements/go.lock; \
	$$compile --python-version 3.12 pyproject.toml requirements/cpu.in $(EXTRAS:%=--extra %) \
		--overrides requirements/cpu.overrides --excludes requirements/cpu.excludes -o requirements/cpu.lock; \
	image() { $$compile --python-version 3.12 "$${@:2}" -o requirements/$$1.lock; }; \
	tested="--constraints requirements/cpu.lock"; \
	image build requirements/build.in $$tested; \
	image operator pyproject.toml $$tested --extra operator --excludes requirements/operator.excludes; \
	image conductor pyproject.toml $$tested --extra rollout --extra traces --excludes requirements/conductor.excludes; \
	image cell-cpu pyproject.toml requirements/cell-cpu.in $$tested $(CELL_EXTRAS:%=--extra %) --extra cpu \
		--overrides requirements/cpu.overrides --excludes requirements/cpu.excludes; \
	image cell-cuda pyproject.toml $(CELL_EXTRAS:%=--extra %) --extra cuda

clean: ## remove .venv and caches; runs/ stays
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
