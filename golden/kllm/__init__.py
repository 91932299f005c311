"""Golden models of KLLM."""

from golden.kllm.orizuru import OrizuruResult, orizuru

__all__ = ["OrizuruResult", "orizuru"]
