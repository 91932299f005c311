"""What every testbench and driver builds on: stimulus, designs, payloads, stalls, memories."""
