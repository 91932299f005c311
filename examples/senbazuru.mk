# What the Makefiles of the examples share: where Python is, and where to build.
ROOT := $(abspath $(dir $(lastword $(MAKEFILE_LIST)))..)
VENV ?= $(ROOT)/.venv
PYTHON := $(VENV)/bin/python
# Folder for everything that is generated or compiled.
BUILD := $(ROOT)/build/examples/$(notdir $(CURDIR))
GENERATORS := $(shell find $(ROOT)/hw -name '*.py')

SIM ?= icarus
SIM_BUILD := $(BUILD)/$(SIM)
COCOTB_RESULTS_FILE := $(SIM_BUILD)/results.xml
