"""Parts of the core: commands, words from memory, replayed scales, lanes, scores."""
