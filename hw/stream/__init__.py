"""Stream components that amaranth.lib lacks."""
