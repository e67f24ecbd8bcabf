# The front door: `make demo` and `make test` do everything, set-up included.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH_STAMP := $(VENV)/.installed-bench

# One file decides every version. pip reads these variables in the isolated environments that build packages
# too, which a command-line -c does not reach. A file: address, because pip splits the value at spaces.
empty :=
space := $(empty) $(empty)
CONSTRAINTS := file://$(subst $(space),%20,$(CURDIR))/constraints.txt
export PIP_CONSTRAINT := $(CONSTRAINTS)
export PIP_BUILD_CONSTRAINT := $(CONSTRAINTS)
PIP := $(BIN)/python -m pip install --quiet -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint types bench docs clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP)  ## make .venv with the tested versions (once; again when they change)

# torch goes first and alone: nothing that follows may ask for another one.
$(STAMP): pyproject.toml constraints.txt
	@echo "Setting up $(VENV) (a few minutes, once)"
	@test -x $(BIN)/python || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
		|| { echo "quadjoint needs Python 3.10 or newer; try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --upgrade pip
	@$(PIP) torch
	@$(PIP) -e ".[dev,experiments,sde]"
	@touch $@

$(BENCH_STAMP): $(STAMP)
	@$(PIP) -e ".[bench]"
	@touch $@

demo: setup  ## train two small neural ODEs with seven gradients, print a table, save a picture
	@$(BIN)/quadjoint demo

test: setup  ## run all but the slow tests, on two processes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

lint: setup  ## check style and formatting (ruff)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .

types: setup  ## check types (mypy)
	$(BIN)/python -m mypy src

bench: $(BENCH_STAMP)  ## compare with torchdiffeq, torchode, diffrax and torchsde
	OMP_NUM_THREADS=1 $(BIN)/quadjoint bench

docs: setup  ## build the documentation into site/
	$(BIN)/python -m mkdocs build --strict

clean:  ## remove what builds and checks left behind; keeps .venv
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +
