# Every target sets up .venv by itself. PYTHON is the interpreter that makes it: make test PYTHON=python3.12
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --constraint constraints.txt
INSTALLED_FROM := setup.cfg pyproject.toml constraints.txt
# What `make test` passes on to pytest: make test PYTEST="-m 'not integration'", or PYTEST="-n 0" for one at a time.
PYTEST ?=

# Batches of ever new sizes fragment the C library's heap, and searching it takes a large part of training on a CPU.
# tcmalloc (Debian: apt install libtcmalloc-minimal4) does not; it is used where it is installed.
TCMALLOC := $(firstword $(wildcard /usr/lib/*/libtcmalloc_minimal.so.4 /usr/lib64/libtcmalloc_minimal.so.4))
WITH_TCMALLOC := $(if $(TCMALLOC),LD_PRELOAD=$(TCMALLOC))

.PHONY: quickstart test lint type wheel hf-suite walkthrough results bench-train bench-decode
.PHONY: bench-data bench-scale gpu-check

# About ten minutes on two cores; a second call continues what the first one began, or shows its result.
quickstart: .venv/ready
	$(WITH_TCMALLOC) $(BIN)/vanilla-transformer train recipes/quickstart.yaml --output-dir runs/quickstart --resume
	@$(BIN)/python -c "$$TRANSLATE"

# The user's side, in a process of its own.
define TRANSLATE
from transformers import pipeline
translator = pipeline("translation", model="runs/quickstart/final", trust_remote_code=True)
for text in ["Connect to the device", "The battery is low.", "Enter the password of your account.", "Turn off the light"]:
    print(f"{text} -> {translator(text)[0]['translation_text']}")
endef
export TRANSLATE

test: .venv/ready-dev
	$(BIN)/python -m pytest -n 2 --dist loadfile $(PYTEST)

lint: .venv/ready-dev
	$(BIN)/ruff check .

# mypy finds the package only where it is installed, and not through an editable install.
type: .venv/ready-dev
	rm -rf build
	$(BIN)/python -m pip install --quiet --no-deps --target build/types .
	cd build/types && ../../$(BIN)/mypy --config-file ../../pyproject.toml --package vanilla_transformer

# transformers' own tests against our classes, from its source distribution; benchmarks/results/hf_suite.json.
hf-suite: .venv/ready-dev
	$(BIN)/python benchmarks/hf_suite.py

# benchmarks/results.md and the README's tables from the result files, which are scored again first.
results: .venv/ready
	$(BIN)/python benchmarks/rescore.py
	$(BIN)/python benchmarks/render.py

# A new user's way from an empty folder, about ten minutes; docs/guide/walkthrough.md is its transcript.
walkthrough: .venv/ready-dev
	$(BIN)/python docs/guide/make_walkthrough.py

# Training speed beside every peer, each in .bench/NAME, about twenty minutes; benchmarks/results/bench_train.md.
bench-train: .venv/ready
	$(WITH_TCMALLOC) $(BIN)/python benchmarks/bench_train.py

# Decoding speed beside transformers and CTranslate2, about ten minutes; benchmarks/results/bench_decode.md.
bench-decode: .venv/ready-dev
	$(WITH_TCMALLOC) $(BIN)/python benchmarks/bench_decode.py

# Preparing and batching 4.5 million pairs, about twenty minutes; benchmarks/results/bench_data.md.
bench-data: .venv/ready
	$(BIN)/python benchmarks/bench_data.py

# Cost against length, batch, vocabulary and processes, about ten minutes; benchmarks/results/bench_scale.md.
bench-scale: .venv/ready-dev
	$(BIN)/python benchmarks/bench_scale.py

# One GPU's correctness and speed, under eight minutes; without a GPU it says so. benchmarks/results/gpu_check.json.
gpu-check: .venv/ready
	$(BIN)/python benchmarks/gpu_check.py

# setuptools copies whatever an older build left in build/ into the wheel.
wheel: .venv/ready
	rm -rf build dist
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	@ls dist

.venv/ready: $(INSTALLED_FROM)
	@$(PYTHON) -c 'import sys; sys.exit("make: needs Python 3.11 or newer, and $(PYTHON) is %d.%d; \
	name another: make PYTHON=python3.12" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) --editable .
	touch $@

.venv/ready-dev: .venv/ready
	$(PIP) --editable .[dev]
	touch $@
