# make setup   both environments and the default model; seconds when nothing changed
# make demo    the main job in small
# make test    lint, types, import contracts, all tests, coverage
# make test-faults   random pipelines under random faults, for SECONDS=600 or FAULTS=200 (20 where neither is
#                    given); DRILL='--seed 7 --json' passes further options on;
#                    before that, the operators alone at thousands of random moments
# make test-attacks  wrong inputs for all that reads what others wrote, and wrong requests for the gateway:
#                    more than 100,000, and 10,000
#
# PYTHON=... names the Python to use (3.10 to 3.12); otherwise the first that fits is taken from the PATH.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.forebay-ready
FITS := import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))
CANDIDATES := python3.12 python3.11 python3.10 python3 python
PYTHON = $(shell for python in $(CANDIDATES); do \
	"$$python" -c '$(FITS)' >/dev/null 2>&1 && { echo "$$python"; break; }; done)

.PHONY: setup demo test test-faults test-attacks lint clean

setup: $(READY)
	@$(BIN)/forebay setup

demo: setup
	@$(BIN)/forebay demo

test: setup lint
	@echo "All tests: about half an hour on two fast cores, more on slow or busy ones; many start Flink, Kafka or vLLM for real."
	$(BIN)/coverage run -m pytest
	$(BIN)/coverage report

test-faults: setup
	$(BIN)/pytest --hypothesis-profile=faults -o timeout=3600 tests/operators/test_any_moment.py
	$(BIN)/python -m forebay.bench.drill $(if $(SECONDS),--seconds $(SECONDS)) $(if $(FAULTS),--faults $(FAULTS)) $(DRILL)

test-attacks: setup
	$(BIN)/pytest --hypothesis-profile=attacks -o timeout=3600 tests/attacks tests/gateway/test_openapi.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) build .coverage .coverage.* .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment whose Python is gone or does not fit is made anew.
$(READY): pyproject.toml
	@$(BIN)/python -c '$(FITS)' >/dev/null 2>&1 || { \
		python='$(PYTHON)'; \
		test -n "$$python" || { echo "No Python 3.10 to 3.12 with venv was found; name one: make setup PYTHON=/path/to/python3.12" >&2; exit 1; }; \
		"$$python" -c '$(FITS)' || { echo "$$python is no Python 3.10 to 3.12 with venv" >&2; exit 1; }; \
		echo "Making $(VENV) with $$python"; \
		"$$python" -m venv --clear $(VENV); }
	$(BIN)/python -m pip install --upgrade pip
	$(BIN)/python -m pip install --editable '.[dev,plot]'
	@touch $@
