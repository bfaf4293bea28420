# voltfleet. `make help` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PY := .venv/bin/python
TYPED := rules facts operations glue files/agent config.py deploy.py

.PHONY: help setup setup-full check lint types unit test test-sandbox test-platform demo demo-down docs bench clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## .venv with the pinned Python packages (no root needed)
	@scripts/setup

setup-full: ## the same, and the apt packages of the sandbox (root; says what it installs)
	@scripts/setup full

check: setup lint types unit ## lint, types, unit tests: no root, no sandbox

lint: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: setup
	$(PY) -m mypy $(TYPED)

unit: setup
	$(PY) -m pytest -q -n auto tests/unit

test: setup-full lint types unit test-sandbox ## everything CI runs: check, then a deploy to simulated hosts

test-sandbox: setup-full ## the main job on three simulated hosts: deploy, again, break, repair, prove
	$(PY) -m pytest -q tests/sandbox --ignore tests/sandbox/test_platform.py

test-platform: setup-full ## CUDA, the driver, reboots on three simulated hosts with V100s (about 10 minutes)
	$(PY) -m pytest -q tests/sandbox/test_platform.py

demo: setup-full ## a simulated fleet on this machine, deployed to for real (root)
	@scripts/demo

demo-down: setup ## stop the simulated fleet
	$(PY) -m sandbox down

docs: setup ## generate docs/variables.md
	$(PY) -m docs.make_variables > docs/variables.md

bench: setup-full ## measure a run with nothing to change against plain ssh
	$(PY) -m bench.noop

clean: ## remove what these targets made here; not your secrets, not the cache (python -m sandbox clean)
	rm -rf .venv .voltfleet/tools .voltfleet/*.json .voltfleet/*.xml .mypy_cache .ruff_cache .pytest_cache .hypothesis
