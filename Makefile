# Every target sets up what it needs. `make help` lists them.

VENV := .venv
PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.ready
# The Python that the virtual environment is made from: make setup CHECKOUT_PYTHON=python3.12
CHECKOUT_PYTHON ?= python3

ifneq ($(words $(CURDIR)),1)
$(error this folder's path has spaces, which make and Verilator cannot handle)
endif

# Simulators and commands start Python hundreds of times, and compiling the sources is half of a start.
export PYTHONDONTWRITEBYTECODE :=

# Options of commands that run many tasks, as in `make campaign LONG="--jobs 8"` or LONG="--scheduler tcp://host:8786".
LONG ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test style lint verilog sim mutate campaign oracles exhaustive fresh synth eval bench docs site wheel clean distclean

help: ## list the targets
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: ## virtual environment with pinned dependencies; Icarus and libpython if they can be had

$(STAMP): requirements.txt
setup $(STAMP):
	@$(CHECKOUT_PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: Python 3.11 or later is needed; set CHECKOUT_PYTHON to one" >&2; exit 1; }
	@$(CHECKOUT_PYTHON) -m sim.commands.setup

demo: setup ## a language model through the RTL, the papers' blocks, a page about both (three minutes)
	@$(PYTHON) -m sim demo

# A file's tests run in one process, or two would generate and compile the same design at once.
test: setup ## the whole test suite
	@$(PYTHON) -m pytest -n 2 --dist loadfile

style: $(STAMP) ## ruff, formatting, import rules, words, types
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/lint-imports
	@$(PYTHON) -m tests.support.words
	@$(PYTHON) -m mypy

lint: style ## the same, and Verilator's and Yosys' checks of every preset (ten minutes)
	@$(PYTHON) -m sim lint all $(LONG)

verilog: $(STAMP) ## Verilog of every block and preset into build/verilog
	@$(PYTHON) -m hw verilog all --preset all -o build/verilog

sim: setup ## every block's testbench by cocotb, in both simulators, under every stall pattern
	@$(PYTHON) -m sim report --presets first,default --driver cocotb -o build/report $(LONG)

mutate: $(STAMP) ## mutation tests of every block (long)
	@$(PYTHON) -m sim mutate all --preset first --count 200 $(LONG)

campaign: setup ## tests too long for the suite, proofs included (hours)
	@$(PYTHON) -m sim campaign $(LONG)

oracles: $(STAMP) ## what the campaign checks packages and models with: PeakRDL, FuseSoC, LiteX, llama.cpp (200 MB)
	@$(PYTHON) -m pip install --quiet --no-deps -r requirements-oracles.txt

exhaustive: $(STAMP) ## every pair of FP16 and BF16 operands through six units (two minutes)
	@$(PYTHON) -m sim exhaustive all

fresh: ## demo and test in a minimal Debian, as a plain user (root, ten minutes; SUITE=trixie)
	@.ci/fresh

synth: $(STAMP) ## area and delay of every block in a 45 nm library (long)
	@$(PYTHON) -m sim synth all --liberty nangate45 $(LONG)

eval: $(STAMP) ## each paper's main result on the language model, into docs/results (about three hours on two cores)
	@$(PYTHON) -m sim results -o docs/results $(LONG)

bench: $(STAMP) ## simulation speeds and the gain of sharing modules
	@$(PYTHON) -m sim bench

docs: $(STAMP) ## the tables of README.md and docs, from the catalogue and kept measurements
	@$(PYTHON) -m sim tables

# Packages of the site alone, beside the environment: what is kept of long runs depends on the versions in it.
SITE := build/docs
SITE_PIP = $(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --target $(SITE) -r

# Without ziglang, which there is not for every machine, the site has no live blocks, and says so.
$(SITE)/.ready: $(STAMP) requirements-docs.txt
	@rm -rf $(SITE)
	@mkdir -p $(SITE)
	@grep -v '^ziglang' requirements-docs.txt > $(SITE)/site.txt
	@grep '^ziglang' requirements-docs.txt > $(SITE)/live.txt
	@$(SITE_PIP) $(SITE)/site.txt
	@$(SITE_PIP) $(SITE)/live.txt --upgrade || echo "ziglang cannot be installed" >&2
	@touch $@

site: $(SITE)/.ready ## a site of README, docs, every block and its sources, some of them live, into build/site (two minutes)
	@PYTHONPATH=$(SITE) NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict
	@echo "wrote build/site/index.html"

wheel: $(STAMP) ## the wheel, in which everything is below `senbazuru`, into build/wheel
	@$(PYTHON) -m pip wheel --quiet --disable-pip-version-check --no-deps -w build/wheel .
	@ls build/wheel/*.whl

clean: ## remove what was built; the virtual environment stays
	rm -rf --one-file-system build

distclean: clean ## remove the virtual environment and the tools' caches too
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
