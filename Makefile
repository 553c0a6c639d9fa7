# make tune      set up, then tune a handful of shapes: on GPU 0 where a CUDA driver answers, else on the CPU
# make test      set up, then run the tests that are not slow, of the planted bugs a third: by SEED=0, 1 or 2
# make test-all  set up, then run all tests, where there is a GPU on it too
# make lint      style and types
# make dist      the source distribution and the wheel in dist/, and whether they install and work on each Python here
# make clean     remove what the others made

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DB ?= results.db
SEED ?= 0
EXTRAS ?= test,lint,dist

GPU_SHAPES := 20480x2/16x20480,1e7x8x8
HOST_SHAPES := 2048x2/8x2048,100000x8x8

unexport PYTHONDONTWRITEBYTECODE  # tests start Python hundreds of times
# Tests wait for a third of their time.
WORKERS ?= $(shell echo $$(($$(nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 1) + 1)))
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

.PHONY: tune test test-all lint dist clean

tune: $(VENV)/installed
	@gpus=$$($(BIN)/python -c 'from tsm2_tune.tuner.cuda import cuda_device_count; print(cuda_device_count())') || exit 1; \
	if [ "$$gpus" -gt 0 ]; then \
	  command -v nvcc >/dev/null || test -x "$${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" || \
	    { echo "nvcc not found: looked in PATH and \$$CUDA_HOME/bin; install the CUDA toolkit, or set CUDA_HOME"; exit 2; }; \
	  $(BIN)/python -c 'import pycuda' 2>/dev/null || \
	    PATH="$${CUDA_HOME:-/usr/local/cuda}/bin:$$PATH" $(BIN)/python -m pip install -q -e '.[cuda]'; \
	  $(BIN)/tsm2-tune --device 0 --shapes $(GPU_SHAPES) --dtype f32,f64 --layout row --budget 10 --db $(DB); \
	else \
	  $(BIN)/tsm2-tune --device cpu --shapes $(HOST_SHAPES) --dtype f32,f64 --layout row --max-trials 12 --budget 15 --db $(DB); \
	fi

test: $(VENV)/installed
	$(PYTEST) -m "not slow and not gpu" --third-of-planted $(SEED)

test-all: $(VENV)/installed
	$(PYTEST) tests

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

dist: $(VENV)/installed
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*
	$(BIN)/python -m tests.installed dist

$(VENV)/installed: pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found: install Python 3.11 or newer, or name one with PYTHON="; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$$($(PYTHON) --version) is too old: Python 3.11 or newer is needed; name one with PYTHON="; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' || { echo "Python's venv module is missing: install the package that holds it, such as python3-venv"; exit 2; }
	@command -v $${CXX:-c++} >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || { echo "no C++ compiler found: install g++ or clang++, or name one with CXX="; exit 2; }
	@$(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[$(EXTRAS)]'
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
