# make demo, make test, ... Everything happens in a virtual environment of its own, made on first use; all it takes
# beforehand is Python 3.11 or newer. Targets for people have a remark behind "##", which `make help` prints.

VENV ?= .venv
# The PyTorch to install; any from 2.11 on will do. To choose the build (CPU, a CUDA version), point pip at it first,
# by its configuration or PIP_* variables, as PyTorch's installation page says.
TORCH ?= torch==2.13.0
# The first of these that is new enough; `make PYTHON=...` takes another.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	$$p -c '$(NEW_ENOUGH)' 2>/dev/null && echo $$p && break; done)
NEW_ENOUGH = import sys; sys.exit(sys.version_info < (3, 11))

# Where the demo's run is; a new demo beside an old one: make demo DEMO=runs/demo-2
DEMO ?= runs/demo

BIN := $(VENV)/bin
READY := $(VENV)/.ready
MADE_FOR := $(CURDIR) $(TORCH)
export PIP_DISABLE_PIP_VERSION_CHECK ?= 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint test-slow test-gpu bench figures clean

help:  ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1|/p' Makefile | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

setup: $(READY)  ## make the virtual environment, or bring it up to date

demo: $(READY)  ## train and evaluate an agent on gridworld-small: a few minutes on two cores
	$(BIN)/longtail train gridworld-small --out $(DEMO)
	$(BIN)/longtail eval $(DEMO)
	@printf '%s\n' '' \
	  'More to try, after `. $(BIN)/activate`:' \
	  '  longtail play gridworld-small              the same tasks, played by you' \
	  '  longtail train gridworld-small --seed 2    another seed; Ctrl-C saves, the same command goes on' \
	  '  longtail train gridworld                   the full benchmark: 10 maps x 10 objects, 40 million steps' \
	  '  longtail worlds                            the other worlds'

test: lint  ## set up, check and test; what CI runs
	$(BIN)/python -m pytest

lint: $(READY)  ## ruff, mypy, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test-slow: $(READY)  ## the tests that take longer than a few seconds each
	$(BIN)/python -m pytest -m 'slow and not gpu'

test-gpu: $(READY)  ## the tests that need a CUDA GPU
	@$(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || \
	  { echo 'make test-gpu: PyTorch sees no CUDA GPU here; longtail doctor says what is missing' >&2; exit 1; }
	$(BIN)/python -m pytest -m gpu

bench: $(READY)  ## steps per second on this machine
	$(BIN)/longtail bench

figures: $(READY)  ## the pictures and tables of the docs again, from the worlds and from results/
	$(BIN)/python docs/figures.py
	$(BIN)/python docs/tables.py

clean:  ## remove the virtual environment, caches, built packages and the demo's run; other runs stay
	rm -rf $(VENV) dist $(DEMO) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find longtail tests examples benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment made in another place or with another PyTorch is brought up to date, too.
ifneq ($(shell cat $(READY) 2>/dev/null),$(MADE_FOR))
.PHONY: $(READY)
endif

$(READY): pyproject.toml
	@test -n '$(PYTHON)' && '$(PYTHON)' -c '$(NEW_ENOUGH)' 2>/dev/null || { echo 'longtail needs Python 3.11 or newer,' \
	  '$(if $(PYTHON),$(PYTHON) is not,there is none here): install it, or name it: make PYTHON=/path/to/python3' >&2; exit 1; }
	@'$(PYTHON)' -c 'import venv, ensurepip' 2>/dev/null || { echo 'longtail needs the venv module of $(PYTHON):' \
	  'install it (on Debian and Ubuntu the package python3-venv)' >&2; exit 1; }
	@rm -f $(READY)
	@{ $(BIN)/python -c '$(NEW_ENOUGH)' && $(BIN)/python -m pip --version; } >/dev/null 2>&1 || \
	  { echo 'making $(VENV) with $(PYTHON)'; '$(PYTHON)' -m venv --clear $(VENV); }
	$(BIN)/python -m pip install --quiet '$(TORCH)'
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@printf '%s' '$(MADE_FOR)' > $(READY)
