"""The command ``unicaim-cost``: UniCAIM's devices, energy and delay from counts of its steps."""
