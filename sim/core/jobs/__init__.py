"""Long jobs as tasks on worker processes, with results that are kept."""
