# `make demo` and `make test` are all a newcomer needs: each makes .venv itself, once.
#   PYTHON=python3.12      which Python makes .venv (3.11 to 3.13)
#   TORCH="torch OPTIONS"  how pip gets torch: by default the build that it finds, on Linux for CUDA (2 to 3 GB); the
#                          options that pytorch.org gives get the CPU build (190 MB)
#   RUNS=runs/demo         where the demo writes
#   TORCHES="2.12.0"       versions of torch for test-losses, each in an environment of its own

# where it is set, each process would translate the package, and each of pytest the tests, anew
export PYTHONDONTWRITEBYTECODE :=

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

PYTHON ?= python3
TORCH ?= torch
RUNS ?= runs/demo
# the oldest torch and the newest with which losses are compiled
TORCHES ?= 2.11.0 2.13.0
BENCHMARKS := speed.env_throughput speed.ppo_throughput speed.step_time speed.work_per_step speed.profile_steps \
  speed.learn_cpu returns.solve returns.return_over_time

LOSSES := $(wildcard tests/bindings/test_losses_*.py tests/bindings/test_compiled_*.py) tests/bindings/test_recurrent_losses.py \
  tests/bindings/test_never_silently_wrong.py tests/kernels/rows

BIN := .venv/bin
INSTALLED := .venv/installed
LATEST = "$$(ls -td "$(RUNS)"/ppo/CartPole-v1_* | head -1)"

# pip's output as a line per large download, instead of silence or of pages
BRIEFLY := | awk '/Downloading .*MB\)/ { split($$2, name, "-"); print "  downloading", name[1], name[2], $$3, $$4 } \
  /^Installing collected/ { print "  unpacking" } { fflush() }'

.PHONY: help demo test test-long test-slow test-losses docs bench lint format clean

help:
	@echo "make demo       train PPO on CartPole-v1, evaluate it on Gymnasium's own, write a learning curve, a GIF, a policy.py"
	@echo "make test       lint, types and the fast tests"
	@echo "make test-long  the tests that take seconds each: tests/long_tests.txt"
	@echo "make test-slow  the tests that take minutes each"
	@echo "make test-losses  the tests of compiled losses, with the oldest torch and the newest"
	@echo "make docs       the documentation site, in site/"
	@echo "make bench      some of the benchmarks, quickly (benchmarks/README.md tells how to run them in full)"
	@echo "make lint       ruff and mypy alone"
	@echo "make format     let ruff put the layout right"
	@echo "make clean      remove .venv, caches and build files (runs/ stays)"

demo: $(INSTALLED)
	$(BIN)/headrace train ppo CartPole-v1 --log-folder "$(RUNS)" --final-episodes 0
	@$(BIN)/headrace eval $(LATEST)
	@$(BIN)/headrace plot $(LATEST) --output $(LATEST)/curves.png
	@$(BIN)/headrace play $(LATEST) --output $(LATEST)/play.gif
	@$(BIN)/headrace export $(LATEST) --to numpy --output $(LATEST)/policy.py

test: $(INSTALLED)  # mypy, which uses one core, beside the first tests; four processes, since some tests wait
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy & types=$$!; $(BIN)/pytest -n 4 --dist loadfile -m "not slow and not long" && wait $$types

test-long: $(INSTALLED)
	$(BIN)/pytest -n 4 --dist loadfile -m "long and not slow"

test-slow: $(INSTALLED)
	$(BIN)/pytest -m slow --timeout 7200

test-losses:
	for version in $(TORCHES); do \
	  $(PYTHON) -m venv .venv-torch/$$version; \
	  grep -v '^torch==' constraints.txt > .venv-torch/constraints.txt; \
	  .venv-torch/$$version/bin/pip install --disable-pip-version-check -c .venv-torch/constraints.txt \
	    torch==$$version -e . pytest pytest-timeout pytest-xdist hypothesis $(BRIEFLY); \
	  .venv-torch/$$version/bin/pytest -n 4 --dist loadfile -m "not slow" $(LOSSES); \
	done

docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "site/index.html"

bench: $(INSTALLED)
	for name in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$name --quick; done

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf .venv .venv-torch .pytest_cache .mypy_cache .ruff_cache .hypothesis dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
	  echo "Headrace needs Python 3.11, 3.12 or 3.13, and $(PYTHON) is $$($(PYTHON) --version 2>&1)."; \
	  echo "Name another: make PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "Installing into .venv, once: torch first (190 MB as a CPU build, 2 to 3 GB as a CUDA build),"
	@echo "then about 400 MB for compiling, plotting, rendering and testing. Some minutes on a slow line."
	@$(BIN)/pip install --disable-pip-version-check -c constraints.txt $(TORCH) $(BRIEFLY)
	@$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e '.[dev]' $(BRIEFLY)
	@touch $@
	@echo "Installed."
