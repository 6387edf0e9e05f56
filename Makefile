# Every target makes its own environment first: `make test` on a fresh clone is enough.
# Another Python: `make test PYTHON=python3.12`. More options for pytest: `make test ARGS="-k sphere"`.

PYTHON ?= python3
ARGS ?=

BIN := .venv/bin
STAMP := .venv/.pyro_snefy_installed
# Tests run side by side and timings are compared: one thread for each process.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
PYTEST := $(ONE_THREAD) $(BIN)/python -m pytest

# Figures are written to files, so no screen is needed.
MPLBACKEND ?= Agg
export MPLBACKEND

.DEFAULT_GOAL := help
.PHONY: help setup demo test fuzz tutorials docs bench lint format clean distclean

help: ## Show the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-18s%s\n", $$1, $$2 }'

setup: $(STAMP) ## Make .venv and install the package with its extras (the others do it by themselves)

demo: $(STAMP) ## Run the demo
	$(BIN)/python -m pyro_snefy.demo $(ARGS)

test: $(STAMP) ## Run the tests, the examples in the docstrings, and the notebooks in short
	$(PYTEST) -n auto --maxprocesses 8 --dist worksteal pyro_snefy tests $(ARGS)

# Other examples each time, EXAMPLES in all; a failing one is printed as code, and in its smallest
# form. `make fuzz SEED=1` draws the same examples again.
EXAMPLES ?= 10000
SEED ?= $(shell date +%s)
PROPERTIES = $(shell grep -c '^@given' tests/properties/test_properties.py)

fuzz: $(STAMP) ## Look for counterexamples to the properties of tests/properties, for about an hour
	@echo "seed $(SEED): $(EXAMPLES) examples of $(PROPERTIES) properties"
	HYPOTHESIS_PROFILE=fuzz FUZZ_EXAMPLES=$$(($(EXAMPLES) / $(PROPERTIES))) $(PYTEST) \
	  -n auto --maxprocesses 8 --dist worksteal --hypothesis-seed=$(SEED) \
	  tests/properties/test_properties.py $(ARGS)

# Figures go into the notebooks, not to the backend for files, and CI would make the runs short.
# Lines that were printed in pieces are joined afterwards, so that outputs do not depend on the pace.
NBCONVERT := env -u CI -u MPLBACKEND $(ONE_THREAD) $(BIN)/python -m nbconvert --log-level=WARN \
  --to notebook --inplace
EXECUTE := --execute --ExecutePreprocessor.timeout=-1 --ExecutePreprocessor.record_timing=False
NOTEBOOKS ?= $(sort $(wildcard tutorials/*.ipynb))

tutorials: $(STAMP) ## Run the notebooks in full, and write their outputs in place
	@count=0; total=$(words $(NOTEBOOKS)); for notebook in $(NOTEBOOKS); do \
	  count=$$((count + 1)); start=$$(date +%s); echo "[$$count/$$total] $$notebook ..."; \
	  $(NBCONVERT) $(EXECUTE) "$$notebook" && $(NBCONVERT) --coalesce-streams "$$notebook" || exit 1; \
	  echo "[$$count/$$total] $$notebook took $$(($$(date +%s) - start)) s"; \
	done

# Warnings are errors; notebooks are shown with the outputs that they are kept with.
docs: $(STAMP) ## Build the site from tutorials/ into build/docs
	$(ONE_THREAD) $(BIN)/python -m sphinx -E -W --keep-going -q -d build/doctrees tutorials build/docs $(ARGS)
	@echo "build/docs/index.html"

bench: $(STAMP) ## Measure time and memory, one test after the other
	$(PYTEST) -s tests/perf $(ARGS)

lint: $(STAMP) ## Check the format, the style and the types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy pyro_snefy

format: $(STAMP) ## Format the code and mend what ruff can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove caches and what was built
	rm -rf build dist demo_output on_more_machines_output tutorials/reference/generated *.egg-info \
	  .hypothesis .pytest_cache .mypy_cache .ruff_cache
	find pyro_snefy tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## Remove .venv as well
	rm -rf .venv

# The stamp is written last: an installation that was interrupted starts again.
# Only pip 21.3 and later can install a pyproject.toml in place; a newer pip is left as it is.
$(STAMP): pyproject.toml constraints.txt
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
	  command -v "$(PYTHON)" >/dev/null || { \
	    echo "error: there is no '$(PYTHON)' here. Install Python 3.10 or newer," \
	      "or name one: make PYTHON=/path/to/python3" >&2; exit 1; }; \
	  "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	    echo "error: '$(PYTHON)' is $$("$(PYTHON)" --version 2>&1); Python 3.10 or newer is needed." \
	      "Name one: make PYTHON=python3.12" >&2; exit 1; }; \
	  "$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "error: '$(PYTHON)' cannot make virtual environments (no module venv or ensurepip)." \
	      "On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }; \
	  echo "Setting up .venv, once ..."; \
	  "$(PYTHON)" -m venv .venv; }
	$(BIN)/python -m pip install --disable-pip-version-check --quiet "pip>=21.3"
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e ".[bench,demo,docs,sklearn,test,tutorials]"
	@touch $@
