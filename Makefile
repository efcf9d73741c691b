# What there is to do here. `make` alone explains it.

PYTHON ?= python3
ARGS ?=

PIP := .venv/bin/python -m pip --disable-pip-version-check install --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help train quick lint style types unit test docs bench bench-peers bench-parts \
    bench-parallel bench-board board pictures soak elastic fuzz store store-kills stuck reshard switchers \
    cookbook matrix layouts kills models same-bits optimizers streams bench-streams bench-growth \
    bench-realistic bench-failure bench-checkpoints bench-logging bench-start bench-safety bench-pages \
    clean same-python

help:
	@echo "make train            train a small convnet on handwritten digits, in well under a minute"
	@echo "make quick            format, lint, types and the unit tests, in about two minutes"
	@echo "make test             format, lint, types and every test; installs Java and Chromium"
	@echo "                      for some of them if it may, and says what it left out if not"
	@echo "make docs             the documentation as a site, in build/site"
	@echo "make bench            microseconds per step that Stoker adds to a plain loop, then bench-peers"
	@echo "make bench-peers      compare Stoker with other trainers, each in its own environment;"
	@echo "                      writes docs/benchmarks (some ten minutes, more the first time)"
	@echo "make bench-parts      data, start-up, compiling, dialects, and memory over 1,000,000 steps"
	@echo "make bench-parallel   the same for two processes, and what each layout sends and holds"
	@echo "make bench-board      how quick the board is with 5,000,000 points and with 200 runs"
	@echo "make board            build the page of the board again (needs Node; users do not)"
	@echo "make pictures         take the pictures of the board in docs/images again"
	@echo "make soak             kill a training 500 times; it must end at the same bits (some minutes)"
	@echo "make fuzz             try 10,000 hostile YAML trees and 10,000 damaged checkpoints (an hour)"
	@echo "make store            train into an S3 server, kill it, and resume with an empty disk"
	@echo "make store-kills      kill S3 servers and trainings during uploads, and compare the weights"
	@echo "make elastic          lose and add processes of an elastic training 200 times (some minutes)"
	@echo "make stuck            let a rank stand still in each way, on each launcher (some minutes)"
	@echo "make reshard          resume what each layout has saved in each other one (some ten minutes)"
	@echo "make matrix           kill trainings with every kind of sampler, dataset, model and hook state"
	@echo "make layouts          train in every layout, in every way, and compare with one process"
	@echo "make kills            kill trainings several times at each point, on one process and on two"
	@echo "make models           train models of transformers in every layout, and compare with one process"
	@echo "make same-bits        train with logical ranks on 1 to 4 processes, and compare all bits"
	@echo "make optimizers       train with optimizers of matrices in every layout, and compare"
	@echo "make switchers        run the scripts of the pages for switchers with both trainers"
	@echo "make cookbook         run the jobs of the cookbook with every trainer, and count lines"
	@echo "make streams          kill trainings on streams of every format more than 100 times"
	@echo "make bench-streams    records per second and time to resume of streams, compared with others"
	@echo "make bench-growth     how costs grow with epochs, hooks, parameters, data and history"
	@echo "make bench-realistic  images, text, fine-tuning and a table, compared with other trainers"
	@echo "make bench-failure    a killed process per minute, compared with other trainers"
	@echo "make bench-checkpoints  saves and loads of 4 GB, compared with the disk and with others"
	@echo "make bench-logging    a line of JSON per step, compared with a loop by hand"
	@echo "make bench-start      the first step, a restart after a kill, and each launcher"
	@echo "make bench-safety     what identity, hidden state, heartbeat and lease cost"
	@echo "make bench-pages      write docs/benchmarks again, from what was measured"
	@echo "make clean            remove .venv and caches; runs/ stays"
	@echo
	@echo "The first of them makes .venv and installs torch into it. Choose another Python and"
	@echo "arguments for the script like this:"
	@echo
	@echo "PYTHON=python3.12 make train ARGS='--epochs 30 --run-dir runs/longer'"

train: .venv/installed
	.venv/bin/python examples/digits.py $(ARGS)

lint: style types

style: .venv/installed-dev
	.venv/bin/python -m ruff format --check
	.venv/bin/python -m ruff check

types: .venv/installed-dev
	.venv/bin/python -m mypy

# One thread each: several processes of torch on one core only get into each other's way.
unit: .venv/installed-dev
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= .venv/bin/python -m pytest -q -m unit -n 2 --dist loadgroup $(ARGS)

# Types and tests at the same time: without a cache mypy takes a minute, on one core.
quick: style
	@$(MAKE) --no-print-directory -j 2 types unit

# TIERS=all makes it an error to leave out tests for want of Java or Chromium.
test: lint
	.venv/bin/python tests/run.py $(if $(filter all,$(TIERS)),--all) $(ARGS)

docs: .venv/installed-dev
	NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --quiet
	@echo "the documentation is in build/site/index.html"

bench: .venv/installed-dev
	.venv/bin/python benchmarks/overhead.py $(ARGS)
	.venv/bin/python benchmarks/peers --write

bench-peers: .venv/installed-dev
	.venv/bin/python benchmarks/peers --write $(ARGS)

bench-parts: .venv/installed-dev
	.venv/bin/python benchmarks/data.py
	.venv/bin/python benchmarks/startup.py
	.venv/bin/python benchmarks/compile.py
	.venv/bin/python benchmarks/dialects.py
	.venv/bin/python benchmarks/memory.py

bench-parallel: .venv/installed
	.venv/bin/python benchmarks/parallel.py $(ARGS)
	.venv/bin/python benchmarks/layouts.py
	.venv/bin/python benchmarks/logical.py

bench-board: .venv/installed-dev
	.venv/bin/python benchmarks/board.py $(ARGS)

# The browser tests take the pictures in docs/images.
pictures: .venv/installed-dev
	STOKER_PICTURES=1 .venv/bin/python -m pytest -q tests/board/test_browser.py -k picture

board:
	cd board && npm install --no-audit --no-fund && npm run build

soak: .venv/installed-dev
	.venv/bin/python benchmarks/soak.py $(ARGS)

elastic: .venv/installed-dev
	OMP_NUM_THREADS=1 .venv/bin/python benchmarks/elastic.py $(ARGS)

fuzz: .venv/installed-dev
	STOKER_FUZZ=10000 OMP_NUM_THREADS=1 .venv/bin/python -m pytest -q tests/config/test_hostile_yaml.py \
	    tests/config/test_allowed.py tests/checkpoint/test_damaged.py $(ARGS)

store: .venv/installed-dev
	.venv/bin/python benchmarks/store_resume.py $(ARGS)

store-kills: .venv/installed-dev
	STOKER_STORE_KILLS=$(or $(KILLS),30) .venv/bin/python -m pytest -q tests/resume/test_failing_stores.py $(ARGS)

stuck: .venv/installed-dev
	STOKER_STUCK=all .venv/bin/python -m pytest -q tests/launch/test_stuck.py $(ARGS)

switchers: .venv/installed-dev
	.venv/bin/python tests/foreign/switchers.py $(ARGS)

cookbook: .venv/installed-dev
	.venv/bin/python tests/foreign/cookbook.py $(ARGS)

reshard: .venv/installed-dev
	OMP_NUM_THREADS=1 STOKER_RESHARD=1 .venv/bin/python -m pytest -q tests/parallel/test_reshard.py $(ARGS)

layouts: .venv/installed-dev
	STOKER_LAYOUTS=all OMP_NUM_THREADS=1 .venv/bin/python -m pytest -q tests/parallel/test_layouts.py \
	    tests/parallel/test_one_config.py tests/parallel/test_resume.py $(ARGS)

kills: .venv/installed-dev
	STOKER_KILLS=all OMP_NUM_THREADS=1 .venv/bin/python -m pytest -q tests/resume/test_killed_runs.py \
	    tests/parallel/test_kills.py tests/dialects/test_towhee_resume.py tests/launch/test_elastic.py $(ARGS)

models: .venv/installed-dev
	STOKER_MODELS=all OMP_NUM_THREADS=1 .venv/bin/python -m pytest -q tests/parallel/test_stock_*.py $(ARGS)

same-bits: .venv/installed-dev
	STOKER_SAME_BITS=all OMP_NUM_THREADS=1 .venv/bin/python -m pytest -q \
	    tests/parallel/test_logical_ranks.py $(ARGS)

optimizers: .venv/installed-dev
	STOKER_OPTIMIZERS=all OMP_NUM_THREADS=1 .venv/bin/python -m pytest -q \
	    tests/parallel/test_optimizers.py $(ARGS)

matrix: .venv/installed-dev
	STOKER_MATRIX=all OMP_NUM_THREADS=1 .venv/bin/python -m pytest -q tests/resume/test_state_matrix.py $(ARGS)

streams: .venv/installed-dev
	STOKER_STREAMS=all OMP_NUM_THREADS=1 .venv/bin/python -m pytest -q tests/data/test_streams.py \
	    tests/data/test_stream_kills.py $(ARGS)

bench-streams: .venv/installed
	.venv/bin/python benchmarks/streams.py $(ARGS)

# These write their pages in docs/benchmarks; the pictures need matplotlib.
bench-growth: .venv/installed-dev
	.venv/bin/python benchmarks/growth.py --write $(ARGS)

bench-realistic: .venv/installed-dev
	.venv/bin/python benchmarks/peers --scenarios k,l --minutes 60 --write $(ARGS)

bench-failure: .venv/installed-dev
	.venv/bin/python benchmarks/failure.py --write $(ARGS)

bench-checkpoints: .venv/installed-dev
	.venv/bin/python benchmarks/large_checkpoint.py --write $(ARGS)

bench-logging: .venv/installed-dev
	.venv/bin/python benchmarks/log_lines.py --write $(ARGS)

bench-start: .venv/installed-dev
	.venv/bin/python benchmarks/startup.py --write $(ARGS)

bench-safety: .venv/installed-dev
	.venv/bin/python benchmarks/safety.py --write $(ARGS)

bench-pages: .venv/installed-dev
	.venv/bin/python benchmarks/publish.py

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	find src tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} +

# Torch goes first and pinned, by itself, so that nothing else chooses its version. The files
# `installed` and `installed-dev` say that what pyproject.toml and constraints.txt ask for is there.

.venv/installed: pyproject.toml constraints.txt | .venv/bin/pip
	$(PIP) torch
	$(PIP) --editable '.[examples]'
	@touch $@

.venv/installed-dev: .venv/installed
	$(PIP) --editable '.[dev]'
	@touch $@

# The venv module puts pip in last, so a .venv that has it is whole.
.venv/bin/pip:
	@command -v "$(PYTHON)" > /dev/null || { \
	    echo "There is no $(PYTHON) here: name a Python 3.11 or newer by PYTHON=..." >&2; exit 1; }
	@"$(PYTHON)" -c "$$REFUSE_OLD_PYTHON"
	"$(PYTHON)" -m venv .venv

define REFUSE_OLD_PYTHON
import sys
if sys.version_info < (3, 11):
    sys.exit("Stoker needs Python 3.11 or newer, but $(PYTHON) is %d.%d: name another by PYTHON=..."
             % sys.version_info[:2])
endef
export REFUSE_OLD_PYTHON

# A Python that was asked for by name, and is not the one in .venv, is not silently passed over.
ifneq ($(origin PYTHON),file)
.venv/installed: | same-python
endif

same-python: .venv/bin/pip
	@version='import sys; print("%d.%d" % sys.version_info[:2])'; \
	has=$$(.venv/bin/python -c "$$version"); asked=$$("$(PYTHON)" -c "$$version"); \
	test "$$has" = "$$asked" || { \
	    echo ".venv has Python $$has, but $(PYTHON) is $$asked: run make clean first" >&2; exit 1; }
