"""Work of the whole core: products, their cycles, operations on vectors."""
