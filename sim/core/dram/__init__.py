"""DRAM with its timing: standards as data, a channel's controller, and a device of channels."""
