# Everything on a bare machine: `make demo` shows what it does, `make test` proves it. Both set up .venv themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test fast lint setup native sanitize lab wheel release clean

demo: $(READY)
	$(BIN)/transduce demo --output runs/demo

# Further options of pytest: `make test PYTEST=--cov` prints branch coverage (of quick tests, some cases of each).
PYTEST ?=
test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal $(PYTEST)

fast: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

setup: $(READY)

$(READY): pyproject.toml constraints.txt setup.py $(wildcard transduce/engines/native/src/*.cpp transduce/engines/native/src/*.h)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt torch
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt -e '.[test]'
	touch $(READY)

# The C++ core again, after a change to it.
native: $(READY)
	$(BIN)/python setup.py -q build_ext --inplace --force

# Its tests under the address and undefined-behaviour sanitizers; the ordinary core is put back afterwards.
SANITIZERS := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
sanitize: $(READY)
	CFLAGS="$(SANITIZERS)" CXXFLAGS="$(SANITIZERS)" LDFLAGS="$(SANITIZERS)" $(BIN)/python setup.py -q build_ext --inplace --force
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0 \
		$(BIN)/python -m pytest tests/engines/native tests/search/test_decoding_laws.py -p no:cacheprovider; status=$$?; \
		$(BIN)/python setup.py -q build_ext --inplace --force; exit $$status

# The pages of docs/lab, all experiments anew: about fifteen minutes on two cores; times.csv has those of each.
lab: $(READY)
	$(BIN)/transduce lab all --output docs/lab

# What is published, checked: sdist, one wheel for every Python, SBOM, hashes (docs/releasing.md). Publishes nothing.
TOOLS := $(VENV)/release
$(TOOLS)/.ready: release/requirements.txt
	test -x $(TOOLS)/bin/python || $(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --disable-pip-version-check -q -r release/requirements.txt
	touch $(TOOLS)/.ready

wheel: $(TOOLS)/.ready
	$(TOOLS)/bin/python release/build_wheel.py

release: $(TOOLS)/.ready
	$(TOOLS)/bin/python release/check.py

clean:
	rm -rf $(VENV) runs build dist .coverage transduce/engines/native/*.so *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
