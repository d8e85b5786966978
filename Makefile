# Everything on a fresh machine with Python ≥ 3.11, make and git: `make train`, `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install -q -c constraints.txt

.PHONY: train test lint bench docs clean

train: $(VENV)/.train  ## train the default model on real text; ARGS="ffn=gated training=quick" changes it
	$(BIN)/mlpkit train $(ARGS)

test: $(VENV)/.test lint  ## every check of the default tier
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadgroup $(ARGS)  # a process per core, a thread each

lint: $(VENV)/.test  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.test  ## side-by-side speed
	$(BIN)/mlpkit bench $(ARGS)

docs: $(VENV)/.test  ## the documentation as a site in site/, in both languages; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -f mkdocs.zh.yml

clean:  ## removes the environment and caches, never a run
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.train: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP_INSTALL) -e ".[report]"
	touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP_INSTALL) -e ".[test]"
	touch $@
