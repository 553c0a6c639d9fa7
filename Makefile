# make tune      set up, then tune two shapes in a minute: on GPU 0, or emulated on the CPU if there is none
# make test      set up, then run the unit tests and an eighth of the slow ones: each commit runs another eighth
# make test-all  set up, then run all tests, where there is a GPU on it too
# make lint      style and types
# make dist      the source distribution and the wheel in dist/, and whether they install and work on each Python here
# make clean     remove what the others made

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DB ?= results.db
PART ?= $(shell git rev-list --count HEAD 2>/dev/null || echo 0)
EXTRAS ?= dask,postgresql,report
GROUPS ?= test lint dist

GPU_PROBLEMS := --shapes 20480x16x20480,1e7x8x8 --dtype f32 --layout row --budget 10 --no-pairs
HOST_PROBLEMS := --shapes 512x4x512,20000x8x8 --dtype f32 --layout row --max-trials 4 --no-pairs

unexport PYTHONDONTWRITEBYTECODE  # tests start Python hundreds of times
# Tests wait for a third of their time.
WORKERS ?= $(shell echo $$(($$(nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 1) + 1)))
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

.PHONY: tune test test-all lint dist clean

tune: $(VENV)/runtime
	@gpus=$$($(BIN)/python -c 'from tsm2_tune.tuner.device.cuda import cuda_device_count; print(cuda_device_count())') || exit 1; \
	if [ "$$gpus" -gt 0 ]; then \
	  command -v nvcc >/dev/null || test -x "$${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" || \
	    { echo "nvcc not found: looked in PATH and \$$CUDA_HOME/bin; install the CUDA toolkit, or set CUDA_HOME"; exit 2; }; \
	  $(BIN)/python -c 'import pycuda' 2>/dev/null || \
	    PATH="$${CUDA_HOME:-/usr/local/cuda}/bin:$$PATH" $(BIN)/python -m pip install -q -e '.[cuda]'; \
	  set -- --device 0 $(GPU_PROBLEMS); \
	else \
	  set -- $(HOST_PROBLEMS); \
	fi; \
	set -- $(BIN)/tsm2-tune "$$@" --db $(DB) --wait; echo "$$@"; exec "$$@"

test: $(VENV)/installed
	$(PYTEST) -m "not gpu" --part $(PART)/8

test-all: $(VENV)/installed
	$(PYTEST) tests

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

dist: $(VENV)/dist
	rm -rf dist
	$(BIN)/python -m build --no-isolation --sdist --wheel
	$(BIN)/twine check --strict dist/*
	$(BIN)/python -m tests.installed dist

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found: install Python 3.11 or newer, or name one with PYTHON="; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$$($(PYTHON) --version) is too old: Python 3.11 or newer is needed; name one with PYTHON="; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' || { echo "Python's venv module is missing: install the package that holds it, such as python3-venv"; exit 2; }
	@command -v $${CXX:-c++} >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || { echo "no C++ compiler found: install g++ or clang++, or name one with CXX="; exit 2; }
	@echo "setting up $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# What tuning takes, without what tests and linters do.
$(VENV)/runtime: pyproject.toml | $(BIN)/python
	@echo "installing what tuning needs into $(VENV) (150 MB)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e .
	@touch $@

$(VENV)/dist: pyproject.toml | $(BIN)/python
	@echo "installing what building the distributions needs into $(VENV) (70 MB)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check 'pip>=25.1'  # an older one knows no --group
	@# Python compiles what is imported, in a third of the time that compiling all would take.
	@$(BIN)/python -m pip install -q --no-compile --disable-pip-version-check --group dist
	@touch $@

$(VENV)/installed: pyproject.toml $(VENV)/dist
	@echo "installing what tests and linters need into $(VENV) (550 MB)"
	@$(BIN)/python -m pip install -q --no-compile --disable-pip-version-check -e '.[$(EXTRAS)]' $(GROUPS:%=--group %)
	@touch $(VENV)/runtime $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
