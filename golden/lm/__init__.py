"""Llama-family language models in NumPy, for real activations and perplexities.

``models`` fetches them by name, ``architectures`` and ``gguf_tokenizer`` read a GGUF file,
``model`` runs it with any ``golden.algorithms.attention.DecodeAttention`` inside, ``perplexity``
scores a text and ``capture`` makes traces.
"""
