# Everything a clone needs: `make demo` to see it work, `make test` to check it, `make help` for the rest.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
BUDGET ?= 5m
CASE   ?= jpegs
NOW    := $(shell date +%Y%m%d-%H%M%S)
OUT    ?= autoopt-runs/demo-$(NOW)
PYTEST ?= -q --durations=40
PARALLEL ?= --numprocesses 3 --dist worksteal
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PAID   := pyproject.toml constraints.txt
# Processes of the tests import torch hundreds of times: from bytecode 2.5 s each, without 5.5 s.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help venv install install-dev browser demo test default-tests test-all test-gpu check lint typecheck imports plain format mutation gallery gauntlet faults docs wheel site clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

venv: $(BIN)/python ## a virtual environment in .venv

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "no python3 found; Python 3.11 or newer is needed (make PYTHON=/path/to/python)" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than Python 3.11 (make PYTHON=/path/to/python)" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip' 2>/dev/null || .ci/debian python3-venv
	"$(PYTHON)" -m venv $(VENV)

install: $(VENV)/.installed ## autoopt and what the examples need, into .venv

$(VENV)/.installed: $(PAID) | $(BIN)/python
	$(PIP) --editable '.[examples]'
	@touch $@

install-dev: $(VENV)/.installed-dev ## the same with everything that the checks need

$(VENV)/.installed-dev: $(PAID) | $(BIN)/python
	$(PIP) --no-compile --editable '.[examples,dev]'
	@touch $@ $(VENV)/.installed

browser: | $(BIN)/python ## Chromium for the tests of the report (Debian, as root); without it they are skipped
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || .ci/debian chromium chromium-driver || \
	  echo "no chromium: the browser tests of the report will be skipped" >&2

demo: install ## optimize examples/train_photos.py as it is; its patch and the report at the end (BUDGET=5m)
	$(BIN)/autoopt optimize examples/train_photos.py --budget $(BUDGET) --out "$(OUT)" -- --epochs 12
	@cat "$(OUT)/patch.diff"
	@echo "report: $(abspath $(OUT))/report.html"

test: ## lint, types, import contract and the default tests
	@$(MAKE) --no-print-directory --jobs 2 install-dev browser
	@$(MAKE) --no-print-directory --jobs 2 default-tests check

# Each process of the tests imports what all tests import: from files that one of them has compiled, a third of the time.
$(VENV)/.compiled: $(VENV)/.installed-dev
	@$(BIN)/python -c "import pytest, torch._dynamo; pytest.main(['--collect-only', '-qq'])" >/dev/null
	@touch $@

default-tests: $(VENV)/.compiled
	$(BIN)/python -m pytest $(PYTEST) $(PARALLEL) -m "not slow and not gpu"

test-all: install-dev browser check ## the same with the slow tests
	$(BIN)/python -m pytest $(PYTEST) -m "not gpu"

test-gpu: install-dev ## the tests that need a CUDA device
	$(BIN)/python -m pytest $(PYTEST) -m gpu

check: lint typecheck imports plain

lint: install-dev ## ruff: rules and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

typecheck: install-dev ## mypy, strict
	$(BIN)/mypy

imports: install-dev ## imports go one way (import-linter)
	$(BIN)/lint-imports --no-cache

plain: install-dev ## sizes, sentences, words and links of the pages; words of docstrings and messages; commit subjects
	$(BIN)/python .ci/plain.py

format: install-dev ## ruff, in place
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

mutation: install-dev ## small changes of the pure modules that no test notices (ONLY='autoopt.simplify.pipeline*'; all take hours)
	$(PIP) --editable '.[mutation]'
	$(BIN)/python -m mutmut run $(ONLY)
	$(BIN)/python -m mutmut results

gallery: install-dev browser ## reports and screenshots of finished runs in docs/gallery (RUNS='autoopt-runs/a autoopt-runs/b')
	$(BIN)/python -m benchmarks.gallery $(RUNS) --out docs/gallery --screenshots

gauntlet: install-dev ## one case against an expert, in under 15 minutes (CASE=jpegs); its result is in benchmarks/results
	$(BIN)/python -m benchmarks.gauntlet run $(CASE)
	$(BIN)/python -m benchmarks.pages

docs: install-dev ## generated pages: docs/reference/strategies.md, docs/peers.md and docs/measurements/
	$(BIN)/python -m autoopt.testing.method_cards > docs/reference/strategies.md.new
	mv docs/reference/strategies.md.new docs/reference/strategies.md
	$(BIN)/python -m benchmarks.pages

wheel: install ## sdist and wheel in dist/, checked, installed in clean environments and used
	$(PIP) --editable '.[release]'
	.ci/wheel $(BIN)/python dist

site: install ## docs/ as a site, in site/; a link that leads nowhere fails
	$(PIP) --editable '.[docs]'
	$(BIN)/python -m mkdocs build --strict --site-dir site

faults: install-dev ## every way in which a trial or a run can break, and what becomes of it
	$(BIN)/python -m benchmarks.faults

clean: ## caches and build output; runs and .venv stay
	rm -rf build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf
