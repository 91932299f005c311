"""The sixth design: rows found by codes of few bits, and read finer where they matter."""
