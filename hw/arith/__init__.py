"""Number formats and arithmetic units."""
