"""Studies: claims of a paper beside this project's figures, one module or folder for each study.

``study`` says what a study is, writes its page and holds the words for verdicts. It is here and
not in ``sim`` because most studies need NumPy alone; those that simulate are in ``sim.studies``.

``veda``, ``topick``, ``lad``, ``unicaim``, ``kllm``, ``recall`` and ``equal_quality`` run on the
language model, by the command ``results``: such a module says which parameters are to be chosen
(``choices``), which policies to try (``trials``), what else to compute (``extras``, plain numbers),
and makes the study of the outcome (``study``). ``kllm_cost`` and ``unicaim_cost`` are analytical
models and ``unicaim_circuit`` is a circuit, each with a command.
"""
