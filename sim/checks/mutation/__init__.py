"""Mutation tests: does a testbench notice injected faults?"""
