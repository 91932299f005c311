"""What each algorithm costs in quality and saves in traffic, on a real language model.

``policies`` names the algorithms and builds them from text, ``measure`` runs one, ``commands`` is
the command line, ``experiments`` repeats each paper's main result at this project's scale.
"""
