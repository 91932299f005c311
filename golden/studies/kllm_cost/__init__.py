"""The command ``kllm-cost``: KLLM's Figs. 8 to 12 and Table I by formulas of its core."""
