# The commands a person types. `make` alone lists them.
PY := .venv/bin/python
SIZES ?= 8
SEED ?= 0

.PHONY: help setup demo test lint
help: ## list the commands
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' $(MAKEFILE_LIST)

setup: ## make .venv with the pinned packages (CPU)
	@scripts/setup.sh

demo: setup ## learn Goofspiel on this machine, end to end (SIZES=all: all deck sizes; SEED=n)
	@$(PY) -m miner demo --sizes $(SIZES) --seed $(SEED)

test: setup lint ## static checks and the whole test suite
	@$(PY) -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

lint: setup ## ruff and mypy
	@$(PY) -m ruff check . && $(PY) -m ruff format --check . && $(PY) -m mypy
