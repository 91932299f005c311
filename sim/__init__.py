"""Where hardware meets golden models: simulators, testbenches, mutation, reports."""
