# make setup   both environments and the default model; takes seconds if nothing changed
# make demo    the main job, small
# make check   format, lint, types, import contracts, words, and the quick tests without Flink, Kafka, Kubernetes and vLLM
# make test    the same with Flink, Kafka, S3 and vLLM; WORKERS=4 is the number of test processes
# make test-rest   what make test leaves out and takes no minutes: slow tests, Kubernetes, the studies in benchmarks/
# make test-all   all tests, also those that take minutes and those with Ray, and twice as many random inputs:
#              before a release, and after a change of what they test
# make ray     Ray Serve in its own environment, for tests that start a Ray cluster; part of make test-all
# make coverage   tests without Flink, Kafka, Kubernetes and vLLM, with the lines and branches that they cover
# make docs    the documentation as a site in build/site, with its links checked (Python 3.11 or newer)
# make reference   the pages, tables and Grafana boards of the documentation that are generated from the code
# make lock    update the locks from pyproject.toml and the .in files (needs a network)
# make dist    dist/forebay-VERSION-py3-none-any.whl, for environments without the source tree
# make sbom    build/sbom.json and build/sbom-engine.json: installed packages, Java, jars and models, as CycloneDX
# make digests   the digests of the images that ours begin with, into their Dockerfiles (needs Docker and a network)
# make flink-options   the names of the installed Flink's options, against which pipeline files are checked
# make flink-classes   the classes that Flink's jobs load, which `forebay setup` prepares so that runs start faster
# make model-defaults   the defaults of models' configs in the engine's transformers, for forebay plan
# make audit   known vulnerabilities of packages and jars (needs a network: PyPI itself, no mirror, and osv.dev)
# make test-faults   random pipelines under random faults, for SECONDS=600 or FAULTS=200 (default: 20 faults);
#                    DRILL='--seed 7 --json' passes more options.
#                    Before that, the operators alone at thousands of random moments, and thousands of events
#                    under one key and in one JVM
# make test-attacks  attacks by clients, replicas, servers and another user of the machine (if you are root); more
#                    than 100,000 wrong inputs for all that reads external data, 10,000 wrong requests for the gateway
#
# PYTHON=... sets the Python (3.10 to 3.12); default: the first suitable one on the PATH.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.forebay-ready
FITS := import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))
CANDIDATES := python3.12 python3.11 python3.10 python3 python
PYTHON = $(shell for python in $(CANDIDATES); do \
	"$$python" -c '$(FITS)' >/dev/null 2>&1 && { echo "$$python"; break; }; done)

TOOLS := build/tools
ENGINE_LOCKS := src/forebay/engine/launch/locks
IMAGES := src/forebay/deploy/images
IMAGE_EXTRAS := $(foreach extra,gateway kubernetes otel registry s3,--extra $(extra))
INSTALL := python -m pip install --no-deps --require-hashes
COMPILE = $(TOOLS)/bin/uv pip compile --quiet --upgrade --universal --generate-hashes --no-emit-index-url \
	--no-python-downloads --custom-compile-command 'make lock'

SBOM = $(TOOLS)/bin/cyclonedx-py environment --output-reproducible --output-format JSON
ENGINE_PYTHON = $(BIN)/python -c 'from forebay.settings import load_settings; \
	from forebay.engine.launch.environment import engine_python; print(engine_python(load_settings()))'
AUDIT = $(TOOLS)/bin/pip-audit
VULNERABLE := jinja2==2.4.1
# Compile once, not in each of the thousand processes that the tests start.
export PYTHONDONTWRITEBYTECODE :=
# Most tests wait half of the time, so there are more workers than cores.
WORKERS := 4
PYTEST = $(BIN)/pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder
# Tests that need neither Flink nor Kafka nor Kubernetes nor vLLM.
ALONE := not flink and not kafka and not kubernetes and not vllm and not slow and not long
QUICK := "$(ALONE) and not heavy"
USUAL := "not kubernetes and not slow and not long"
REST := "not long and (kubernetes or slow)"
STUDIES := tests/benchmarks
TESTS := --ignore=$(STUDIES)
RAY_HOME = $$($(BIN)/python -c 'from forebay.settings import load_settings; print(load_settings().home)')/ray
PACKAGES := 'import sysconfig; print(sysconfig.get_path("purelib"))'

.PHONY: dist reference flink-classes flink-options model-defaults setup demo ray check test test-rest test-all coverage test-faults test-attacks lint docs lock \
	sbom digests audit clean

setup: $(READY)
	@$(BIN)/forebay setup

demo: setup
	@$(BIN)/forebay demo

# Quick tests do not wait, and each worker imports all tests first.
check: WORKERS := 2
check: $(READY) lint
	$(PYTEST) --hypothesis-profile=check $(TESTS) -m $(QUICK)

# Real Ray, for tests only, in its own environment next to the engine's.
ray: $(READY)
	@home="$(RAY_HOME)"; cmp -s $(IMAGES)/ray.txt "$$home/lock.txt" || { \
		echo "Making $$home: Ray Serve, for tests" && $(BIN)/python -m venv --clear "$$home" && \
		"$$home"/bin/$(INSTALL) --quiet -r $(IMAGES)/ray.txt && cp $(IMAGES)/ray.txt "$$home/lock.txt"; }

test: setup lint
	@echo "Many tests start Flink, Kafka or vLLM for real: this takes about ten minutes on two cores."
	$(PYTEST) --hypothesis-profile=test $(TESTS) -m $(USUAL)

test-rest: setup
	$(PYTEST) --hypothesis-profile=test $(TESTS) -m $(REST)
	@echo "The studies measure, so they run without the others."
	$(PYTEST) --hypothesis-profile=test $(STUDIES) -m "not long"

test-all: setup ray lint
	@echo "All tests: this takes more than half an hour on two cores."
	$(PYTEST)

coverage: $(READY)
	$(PYTEST) --hypothesis-profile=test --cov $(TESTS) -m "$(ALONE)"

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
	$(BIN)/python -m tools.key_reference docs/how-to/ray.md
	$(BIN)/python -m tools.boards

# The locks are for the checkout; a wheel requires ranges. The engine needs Python 3.11 or newer.
lock: $(TOOLS)/ready
	$(COMPILE) --python-version 3.10 -o locks/build.txt locks/build.in
	$(COMPILE) --python-version 3.10 -o locks/tools.txt locks/tools.in
	$(COMPILE) --python-version 3.10 -o $(IMAGES)/ray.txt locks/ray.in
	$(COMPILE) --python-version 3.10 --extra dev -o locks/project.txt pyproject.toml
	$(COMPILE) --python-version 3.10 -c locks/project.txt $(IMAGE_EXTRAS) -o $(IMAGES)/requirements.txt pyproject.toml
	cp locks/build.txt $(IMAGES)/build.txt
	$(COMPILE) --python-version 3.11 --override $(ENGINE_LOCKS)/engine-without.in \
		-o $(ENGINE_LOCKS)/engine.txt $(ENGINE_LOCKS)/engine.in
	$(COMPILE) --python-version 3.11 -c $(ENGINE_LOCKS)/engine.txt -o $(ENGINE_LOCKS)/torch.txt $(ENGINE_LOCKS)/torch.in

dist: $(READY)
	@rm -rf dist build/lib
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --no-index --wheel-dir dist .
	@ls dist/*.whl

# Of a pipeline's run, a program's, one with Kafka and event time, and one with several JVMs.
CLASS_RUNS := tests/cli/test_run.py::test_standard_output_has_only_the_results tests/api/test_readme.py \
	tests/pipeline/test_kafka_run.py::test_every_record_gives_one_result_or_dead_letter tests/apps/test_jobs.py \
	tests/pipeline/test_task_managers.py
flink-classes: setup
	rm -rf build/classes && mkdir -p build/classes
	JDK_JAVA_OPTIONS=-XX:DumpLoadedClassList=$(CURDIR)/build/classes/%p.list $(BIN)/pytest $(CLASS_RUNS)
	$(BIN)/python -m tools.flink_classes build/classes

flink-options: setup
	$(BIN)/python -m tools.flink_options

model-defaults: setup
	$(BIN)/python -m tools.model_defaults

sbom: setup $(TOOLS)/ready
	$(SBOM) --pyproject pyproject.toml --output-file build/sbom.json $(BIN)/python
	$(SBOM) --output-file build/sbom-engine.json "$$($(ENGINE_PYTHON))"
	$(BIN)/python -m tools.java_parts

# A package index without the service answers "not found" to everything, which pip-audit takes for no vulnerability:
# first check that it finds a known one.
audit: $(TOOLS)/ready
	@rm -rf $(TOOLS)/none
	@echo '$(VULNERABLE)' | $(AUDIT) --cache-dir $(TOOLS)/none --no-deps --disable-pip -r /dev/stdin 2>&1 \
		| grep -q 'Found .* known vulnerabilit' || { \
		echo "make audit needs PyPI's service for known vulnerabilities, https://pypi.org/pypi/NAME/VERSION/json," \
			"which a mirror may not have. It does not report those of $(VULNERABLE): nothing was audited." >&2; \
		exit 1; }
	@$(MAKE) --no-print-directory setup
	$(AUDIT) --skip-editable --path "$$($(BIN)/python -c $(PACKAGES))" \
		--path "$$("$$($(ENGINE_PYTHON))" -c $(PACKAGES))"
	$(BIN)/python -m tools.java_parts --audit

# A tag may lead to another image tomorrow, a digest may not.
digests:
	@for file in $(IMAGES)/*.Dockerfile; do \
		image="$$(sed -n 's/^FROM \([^@ ]*\).*/\1/p' "$$file")"; \
		digest="$$(docker buildx imagetools inspect "$$image" --format '{{.Manifest.Digest}}')" || exit 1; \
		sed -i "s|^FROM .*|FROM $$image@$$digest|" "$$file" && echo "$$image@$$digest"; done

$(TOOLS)/ready: locks/tools.txt
	python3 -m venv --clear $(TOOLS)
	$(TOOLS)/bin/$(INSTALL) -r locks/tools.txt
	@touch $@

clean:
	rm -rf $(VENV) build .coverage .coverage.* .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Replace an environment whose Python is missing or unsuitable.
$(READY): pyproject.toml locks/build.txt locks/project.txt
	@$(BIN)/python -c '$(FITS)' >/dev/null 2>&1 || { \
		python='$(PYTHON)'; \
		test -n "$$python" || { echo "No Python 3.10 to 3.12 with venv was found; set one: make setup PYTHON=/path/to/python3.12" >&2; exit 1; }; \
		"$$python" -c '$(FITS)' || { echo "$$python is not a Python 3.10 to 3.12 with venv" >&2; exit 1; }; \
		echo "Making $(VENV) with $$python"; \
		"$$python" -m venv --clear $(VENV); }
	$(BIN)/$(INSTALL) -r locks/build.txt
	$(BIN)/$(INSTALL) --no-build-isolation -r locks/project.txt
	$(BIN)/python -m pip install --no-deps --no-build-isolation --editable .
	@touch $@
