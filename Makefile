# Everything on a bare machine: `make demo` shows what it does, `make test` proves it. Both set up .venv themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test fast lint setup clean

demo: $(READY)
	$(BIN)/transduce demo --output runs/demo

test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal

fast: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt torch
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt -e '.[test]'
	touch $(READY)

clean:
	rm -rf $(VENV) runs build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
