# make setup   both environments and the default model; seconds when nothing changed
# make demo    the main job in small
# make check   format, lint, types, import contracts, words, and the quick tests without Flink, Kafka, Kubernetes and vLLM
# make test    the same with Flink, Kafka, Kubernetes, Ray and vLLM; WORKERS=4 is how many run side by side
# make test-all   the same with those that take minutes, and twice as many random inputs: before a release, and
#              after a change of what they are about
# make ray     Ray Serve in an environment of its own, for the tests that start a Ray cluster; make test-all does it, too
# make coverage   the quick tests, and which lines and branches they reach
# make docs    the documentation as a site in build/site, its links checked (Python 3.11 or newer)
# make reference   the pages and tables of the documentation that are made from the code
# make lock    the locks of what is installed, anew from pyproject.toml and the .in files (needs a network)
# make dist    dist/forebay-VERSION-py3-none-any.whl, for environments without the source tree
# make sbom    build/sbom.json and build/sbom-engine.json: what is installed, as CycloneDX
# make flink-options   the names of Flink's options, which pipeline files are checked against, of the Flink that
#                      is installed
# make model-defaults   the defaults of models' configs, which forebay plan uses, of the engine's transformers
# make audit   known vulnerabilities of what is installed (needs a network, and PyPI itself: no mirror)
# make test-faults   random pipelines under random faults, for SECONDS=600 or FAULTS=200 (20 where neither is
#                    given); DRILL='--seed 7 --json' passes further options on;
#                    before that, the operators alone at thousands of random moments, and thousands of events
#                    under one key and in one JVM
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

TOOLS := build/tools
ENGINE_LOCKS := src/forebay/engine/launch/locks
INSTALL := python -m pip install --no-deps --require-hashes
COMPILE = $(TOOLS)/bin/uv pip compile --quiet --upgrade --universal --generate-hashes --no-emit-index-url \
	--no-python-downloads --custom-compile-command 'make lock'

SBOM = $(TOOLS)/bin/cyclonedx-py environment --output-reproducible --output-format JSON
ENGINE_PYTHON = $(BIN)/python -c 'from forebay.settings import load_settings; \
	from forebay.engine.launch.environment import engine_python; print(engine_python(load_settings()))'
AUDIT = $(TOOLS)/bin/pip-audit
VULNERABLE := jinja2==2.4.1
# Compiled once, not by each of the thousand processes that the tests start.
export PYTHONDONTWRITEBYTECODE :=
# Half of most tests is waiting, so there are more workers than cores.
WORKERS := 4
PYTEST = $(BIN)/pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder
# What needs neither Flink nor Kafka nor Kubernetes nor vLLM, and is quick.
QUICK := "not flink and not kafka and not kubernetes and not vllm and not slow and not long"
NOT_LONG := "not long"
RAY_HOME = $$($(BIN)/python -c 'from forebay.settings import load_settings; print(load_settings().home)')/ray
PACKAGES := 'import sysconfig; print(sysconfig.get_path("purelib"))'

.PHONY: dist reference flink-options model-defaults setup demo ray check test test-all coverage test-faults test-attacks lint docs lock \
	sbom audit clean

setup: $(READY)
	@$(BIN)/forebay setup

demo: setup
	@$(BIN)/forebay demo

check: $(READY) lint
	$(PYTEST) --hypothesis-profile=check -m $(QUICK)

# Real Ray, for tests: an environment of its own beside the engine's, for no user needs it.
ray: $(READY)
	@home="$(RAY_HOME)"; cmp -s locks/ray.txt "$$home/lock.txt" || { \
		echo "Making $$home: Ray Serve, for tests" && $(BIN)/python -m venv --clear "$$home" && \
		"$$home"/bin/$(INSTALL) --quiet -r locks/ray.txt && cp locks/ray.txt "$$home/lock.txt"; }

test: setup lint
	@echo "Many tests start Flink, Kafka or vLLM for real: this takes about twenty minutes on two cores."
	$(PYTEST) --hypothesis-profile=check -m $(NOT_LONG)

test-all: setup ray lint
	@echo "All tests: this takes more than half an hour on two cores."
	$(PYTEST)

coverage: $(READY)
	$(PYTEST) --hypothesis-profile=check --cov -m $(QUICK)

test-faults: setup
	$(BIN)/pytest --hypothesis-profile=faults -o timeout=3600 tests/flink/test_any_moment*.py \
		tests/flink/test_one_jvm.py tests/flink/test_one_key.py tests/pipeline/test_flink_process.py
	$(BIN)/python -m benchmarks.drill $(if $(SECONDS),--seconds $(SECONDS)) $(if $(FAULTS),--faults $(FAULTS)) $(DRILL)

test-attacks: setup
	$(BIN)/pytest --hypothesis-profile=attacks -o timeout=3600 tests/attacks tests/fleet/test_zmtp.py \
		tests/gateway/test_openapi.py tests/gateway/test_closed.py tests/gateway/test_hosts.py tests/gateway/test_form.py \
		tests/gateway/test_asked.py tests/gateway/test_body_reader.py tests/gateway/test_spent_tokens.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.plain_english

docs: $(READY)
	$(BIN)/zensical build --strict --clean

reference: $(READY)
	$(BIN)/python -m tools.api_reference
	$(BIN)/python -m tools.key_reference docs/pipeline.md
	$(BIN)/python -m tools.key_reference docs/gateway.md
	$(BIN)/python -m tools.key_reference docs/deployment.md
	$(BIN)/python -m tools.key_reference docs/ray-fleet.md

# The locks are for the checkout; a wheel of Forebay asks for ranges. The engine is for Python 3.11 and newer.
lock: $(TOOLS)/ready
	$(COMPILE) --python-version 3.10 -o locks/build.txt locks/build.in
	$(COMPILE) --python-version 3.10 -o locks/tools.txt locks/tools.in
	$(COMPILE) --python-version 3.10 -o locks/ray.txt locks/ray.in
	$(COMPILE) --python-version 3.10 --extra dev --extra plot -o locks/project.txt pyproject.toml
	$(COMPILE) --python-version 3.11 --override $(ENGINE_LOCKS)/engine-without.in \
		-o $(ENGINE_LOCKS)/engine.txt $(ENGINE_LOCKS)/engine.in
	$(COMPILE) --python-version 3.11 -c $(ENGINE_LOCKS)/engine.txt -o $(ENGINE_LOCKS)/torch.txt $(ENGINE_LOCKS)/torch.in

dist: $(READY)
	@rm -rf dist build/lib
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --no-index --wheel-dir dist .
	@ls dist/*.whl

flink-options: setup
	$(BIN)/python -m tools.flink_options

model-defaults: setup
	$(BIN)/python -m tools.model_defaults

sbom: setup $(TOOLS)/ready
	$(SBOM) --pyproject pyproject.toml --output-file build/sbom.json $(BIN)/python
	$(SBOM) --output-file build/sbom-engine.json "$$($(ENGINE_PYTHON))"

# A package index without the service answers "not found" to all, in which pip-audit sees no vulnerability: so
# it is first asked for what is known to have one.
audit: $(TOOLS)/ready
	@rm -rf $(TOOLS)/none
	@echo '$(VULNERABLE)' | $(AUDIT) --cache-dir $(TOOLS)/none --no-deps --disable-pip -r /dev/stdin 2>&1 \
		| grep -q 'Found .* known vulnerabilit' || { \
		echo "make audit needs PyPI's service for known vulnerabilities, https://pypi.org/pypi/NAME/VERSION/json," \
			"which a mirror may not have. It does not tell those of $(VULNERABLE) here: nothing was audited." >&2; \
		exit 1; }
	@$(MAKE) --no-print-directory setup
	$(AUDIT) --skip-editable --path "$$($(BIN)/python -c $(PACKAGES))" \
		--path "$$("$$($(ENGINE_PYTHON))" -c $(PACKAGES))"

$(TOOLS)/ready: locks/tools.txt
	python3 -m venv --clear $(TOOLS)
	$(TOOLS)/bin/$(INSTALL) -r locks/tools.txt
	@touch $@

clean:
	rm -rf $(VENV) build .coverage .coverage.* .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment whose Python is gone or does not fit is made anew.
$(READY): pyproject.toml locks/build.txt locks/project.txt
	@$(BIN)/python -c '$(FITS)' >/dev/null 2>&1 || { \
		python='$(PYTHON)'; \
		test -n "$$python" || { echo "No Python 3.10 to 3.12 with venv was found; name one: make setup PYTHON=/path/to/python3.12" >&2; exit 1; }; \
		"$$python" -c '$(FITS)' || { echo "$$python is no Python 3.10 to 3.12 with venv" >&2; exit 1; }; \
		echo "Making $(VENV) with $$python"; \
		"$$python" -m venv --clear $(VENV); }
	$(BIN)/$(INSTALL) -r locks/build.txt
	$(BIN)/$(INSTALL) --no-build-isolation -r locks/project.txt
	$(BIN)/python -m pip install --no-deps --no-build-isolation --editable .
	@touch $@
