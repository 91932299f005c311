"""KLLM: matrix-vector products on K-Means indices."""
