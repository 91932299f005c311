"""Solutions of the exercises of docs/courses/topick.md."""
