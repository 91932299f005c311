"""Studies that simulate or synthesise RTL: a paper's claims on speed or energy, measured.

They share :mod:`golden.studies.study` with the studies of ``golden.studies``, which need NumPy
alone. ``topick`` is the command ``pruning``, ``kllm`` is ``counting``, ``veda`` is ``ablation``;
``results`` runs the studies of the language model in parallel.
"""
