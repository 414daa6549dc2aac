# Two commands do everything: `make demo` (the main job) and `make test`.
PYTHON ?= python3
BIN := .venv/bin
PACKAGES := core engines fleet operator extproc bench cli

.PHONY: help install demo test check lint types contracts size proto lock clean

help:  ## say what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: .venv/.installed  ## make .venv with every extra, as locked

.venv/.installed: pyproject.toml requirements.lock
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -r requirements.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

demo: install  ## the main job: real Envoy, four engines, real traffic, a table and a picture
	$(BIN)/leadsman demo --out demo-out

test: install check  ## lint, types, contracts, and every test
	$(BIN)/pytest

check: lint types contracts  ## what needs no test run

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

contracts: install
	$(BIN)/lint-imports

size:  ## lines per file, by layer
	@for p in $(PACKAGES); do find $$p -name '*.py' ! -name '*_pb2*' | sort | xargs wc -l | sed 's/ total/ total in '$$p'/'; done

proto: install  ## generate fleet/'s messages from fleet.proto
	$(BIN)/python -m grpc_tools.protoc -I fleet --python_out=fleet --pyi_out=fleet --grpc_python_out=fleet fleet/leadsman_fleet/fleet.proto

lock:  ## write requirements.lock from what is installed
	$(BIN)/pip freeze --exclude-editable > requirements.lock

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
