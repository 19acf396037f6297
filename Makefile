# Each target is one thin line; CONTRIBUTING.md says which one proves which change.
BIN ?= .venv/bin
TARGET ?= sm_90
.PHONY: test test-fast test-kernel check lint types docs format texts

test: ## every test
	$(BIN)/python -m pytest

test-fast: ## the shorter pass
	$(BIN)/python -m pytest -m quick

test-kernel: ## a family's kernels, or one file of their tests: K=conv, K=conv/test_coverage.py
	$(BIN)/python -m pytest -m proof tests/ptx/kernels/$(or $(K),$(error K= is missing, for example K=conv))

check: ## every kernel assembled for every target, without spills
	$(BIN)/python -m oxijax check

lint:
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/codespell

types:
	$(BIN)/pyright

docs: ## the pages, and the code in them; needs the extra docs
	$(BIN)/mkdocs build --strict --quiet && $(BIN)/python -m pytest tests/docs

format:
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

texts: ## all texts of a target, to be compared with diff -r: OUT=before TARGET=sm_90
	$(BIN)/python -m oxijax ptx --target $(TARGET) --output $(or $(OUT),$(error OUT= is missing))
