# `make demo` and `make test` set everything up by themselves: Python 3.10+ with venv is all they need.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: demo test quick lint docs site dist clean

$(VENV)/.torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt $$(grep '^torch==' constraints.txt)
	touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[torch]"
	touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@

demo: $(VENV)/.installed
	$(BIN)/torchdoctor run --budget 2m sample_workloads/slow_decode.py

# What failed runs again, alone, and is listed as FLAKY where it passes then: at most two may.
test: $(VENV)/.dev
	$(BIN)/python -m pytest -n auto --maxprocesses 8 --dist loadgroup || \
	  { [ $$? = 1 ] && $(BIN)/python -m pytest -v --last-failed --last-failed-no-failures none --again; }

# The tests that start no program, but for a few: what to run while working.
quick: $(VENV)/.dev
	$(BIN)/python -m pytest --quick -n auto --maxprocesses 8 --dist loadgroup

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/size.py

docs: $(VENV)/.installed
	$(BIN)/python tools/catalogue_pages.py docs
	$(BIN)/python tools/record_schema.py docs
	$(BIN)/python tools/site_pages.py docs
	$(BIN)/python tools/room_drawings.py

# A link that leads nowhere, a page that no menu has, an anchor that is gone: each fails.
site: $(VENV)/.dev
	$(BIN)/python -m mkdocs build --strict

dist: $(VENV)/.dev
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*

clean:
	rm -rf $(VENV) build dist
