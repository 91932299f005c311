"""A board, or its simulation, at the other end of a serial line."""
