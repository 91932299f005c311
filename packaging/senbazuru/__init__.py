"""Open, bit-checked RTL of accelerators that make LLM decoding cheap.

``senbazuru.hw`` are the generators, ``senbazuru.golden`` the NumPy models, ``senbazuru.sim`` the
simulations. Each is a command too: ``senbazuru hw list``.
"""
