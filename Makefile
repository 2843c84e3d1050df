# Every target sets up .venv by itself. PYTHON is the interpreter that makes it: make test PYTHON=python3.12
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --constraint constraints.txt
INSTALLED_FROM := setup.cfg pyproject.toml constraints.txt
# What `make test` passes on to pytest: make test PYTEST="-m 'not integration'"
PYTEST ?=

# Batches of ever new sizes fragment the C library's heap, and searching it takes a large part of training on a CPU.
# jemalloc (Debian: apt install libjemalloc2) does not; it is used where it is installed.
JEMALLOC := $(firstword $(wildcard /usr/lib/*/libjemalloc.so.2 /usr/lib64/libjemalloc.so.2))
export MALLOC_CONF := dirty_decay_ms:-1,muzzy_decay_ms:-1
WITH_JEMALLOC := $(if $(JEMALLOC),LD_PRELOAD=$(JEMALLOC))

.PHONY: quickstart test lint type wheel

# About ten minutes on two cores; a second call continues what the first one began, or shows its result.
quickstart: .venv/ready
	$(WITH_JEMALLOC) $(BIN)/vanilla-transformer train recipes/quickstart.yaml --output-dir runs/quickstart --resume
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
	$(BIN)/python -m pytest $(PYTEST)

lint: .venv/ready-dev
	$(BIN)/ruff check .

# mypy finds the package only where it is installed, and not through an editable install.
type: .venv/ready-dev
	rm -rf build
	$(BIN)/python -m pip install --quiet --no-deps --target build/types .
	cd build/types && ../../$(BIN)/mypy --config-file ../../pyproject.toml --package vanilla_transformer

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
