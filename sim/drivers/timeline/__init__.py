"""When beats move: streams of a design and of its sub-blocks, watched in a simulation."""
