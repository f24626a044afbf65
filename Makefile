# Needs only make and a Python >= 3.11. Everything else is installed in $(VENV), once.

VENV ?= .venv
PYTHON ?= $(shell .ci/find-python | head -n 1 | cut -d ' ' -f 2-)
ARGS ?=
# most of the time goes into compiling, which uses one core
WORKERS ?= -n auto --maxprocesses 4
RUN := $(VENV)/bin/python
FRESH := $(abspath $(VENV))-wheel

.PHONY: help demo test test-slow docs lint format types wheel clean
.DEFAULT_GOAL := help

help:  ## this list
	@awk -F ':.*## +' '/^[a-z-]+:.*##/ { printf "make %-11s%s\n", $$1, $$2 }' Makefile
	@echo 'ARGS="..." passes arguments on; PYTHON=... and VENV=... choose interpreter and environment.'

demo: $(VENV)/has-examples  ## sample a network on real data; ARGS="--data concrete" for other data
	$(RUN) examples/demo.py $(ARGS)

test: $(VENV)/has-test  ## the fast tests, the README's code blocks among them
	$(RUN) -m pytest -m "not slow" $(WORKERS) $(ARGS)

test-slow: $(VENV)/has-test  ## the slow tests
	$(RUN) -m pytest -m slow $(WORKERS) $(ARGS)

docs: $(VENV)/has-test  ## only the code blocks of the documents
	$(RUN) -m pytest tests/test_documents.py $(ARGS)

lint: $(VENV)/has-dev  ## ruff
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

format: $(VENV)/has-dev  ## let ruff mend what it can
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

types: $(VENV)/has-dev  ## mypy
	$(RUN) -m mypy

wheel: $(VENV)/has-dev  ## build the wheel and check it in a fresh environment
	rm -rf dist $(FRESH)
	$(RUN) -m build --outdir dist . >/dev/null
	$(RUN) -m venv $(FRESH)
	$(FRESH)/bin/python -m pip install --quiet dist/*.whl
	cd "$$(mktemp -d)" && $(FRESH)/bin/python -I $(CURDIR)/.ci/check_wheel.py $(CURDIR) \
	  && rmdir "$$PWD"

clean:  ## remove the environments and what was built
	rm -rf .venv* dist build *.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

$(RUN):
	@test -n "$(PYTHON)" || { echo "No usable Python >= 3.11 found: it must run, with the modules" \
	  "venv and ensurepip (on Debian: apt install python3-venv)." \
	  "To name one: make PYTHON=/path/to/python" >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)

# One stamp for each extra of pyproject.toml; a newer pyproject.toml installs again.
$(VENV)/has-%: pyproject.toml | $(RUN)
	@echo "Installing ppl_bnn with its extra '$*' in $(VENV); the first time takes minutes."
	$(RUN) -m pip install --quiet --editable ".[$*]"
	@touch $@
