"""A Llama-family language model in NumPy, for real activations and perplexities.

``download`` fetches the default model, ``weights`` and ``tokenizer`` read a GGUF file, ``model``
runs it with any ``golden.algorithms.attention.DecodeAttention`` inside, ``perplexity`` scores a
text and ``capture`` makes traces.
"""
