"""UniCAIM: static and dynamic pruning of the KV cache in one array."""
