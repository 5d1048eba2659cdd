.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help setup model demo up test check format protos bench soak clean

help: ## List the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(STAMP): pyproject.toml constraints.txt
	@scripts/setup $(PYTHON) $(VENV)
	@touch $@

setup: $(STAMP) ## Create .venv with pinned dependencies

model: $(STAMP) ## Download the default model (98 MB, once)
	@$(BIN)/baton pull smollm2-135m

demo: model ## Ask the default model a question through the whole stack and show its trace
	@$(BIN)/baton demo

up: model ## Run the stack in the foreground
	@$(BIN)/baton up

test: model ## Run the whole test suite
	@$(BIN)/pytest --numprocesses 2 --dist loadfile

check: $(STAMP) ## Lint, types, layers, fresh stubs
	@scripts/check

format: $(STAMP) ## Rewrite the code in the project's format
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

protos: $(STAMP) ## Regenerate the gRPC stubs
	@scripts/protos

bench: model ## Time the CPU engine against llama.cpp (compiles llama.cpp once)
	@$(BIN)/pip install -q -c constraints.txt -e '.[bench]' && $(BIN)/python -m bench.cpu

soak: $(STAMP) ## Kill, stop and move services under load, and check every answer (a quarter of an hour)
	@$(BIN)/python -m bench.soak

clean: ## Remove .venv and caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
