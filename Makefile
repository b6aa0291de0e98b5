# Needs Python 3.11 or newer, make and pip; everything else goes into .venv.
PYTHON ?= python3
VENV := .venv
PIP := $(VENV)/bin/python -m pip
OUTRIDER := $(VENV)/bin/outrider
MODEL := smollm2-135m
# The native runner is compiled by the install, so its sources renew it.
NATIVE := CMakeLists.txt hatch_build.py $(wildcard src/outrider/native/csrc/*)

.DEFAULT_GOAL := help
.PHONY: help test demo fix clean

help:
	@echo "make demo    install, fetch the default model, generate with and without speculation"
	@echo "make test    install with the development tools, fetch the default model, run scripts/check"
	@echo "make fix     format, and repair what ruff can repair"
	@echo "make clean   remove .venv and every cache"

test: $(VENV)/.dev
	$(OUTRIDER) pull $(MODEL)
	scripts/check

demo: $(VENV)/.base
	$(OUTRIDER) pull $(MODEL)
	$(OUTRIDER) generate --compare

fix: $(VENV)/.dev
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The development install contains the base install, so it renews both stamps.
$(VENV)/.dev: pyproject.toml constraints.txt $(NATIVE) | $(VENV)/bin/python
	$(PIP) install -c constraints.txt -e '.[dev]'
	touch $(VENV)/.base $@

$(VENV)/.base: pyproject.toml constraints.txt $(NATIVE) | $(VENV)/bin/python
	$(PIP) install -c constraints.txt -e .
	touch $@

# A venv without pip (ensurepip missing) must not stay behind and pass for a finished one.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Outrider needs Python 3.11 or newer and this is " + sys.version.split()[0] + "; try: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
