"""Where hardware meets golden models: simulators, benches, mutation, reports."""
