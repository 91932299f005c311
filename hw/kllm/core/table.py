"""Which tables the accelerator loads."""

from amaranth.lib import enum


class Table(enum.IntEnum, shape=3):
    """Tables of a product, as they are loaded."""

    PRODUCTS = 0
    WEIGHT_CENTROIDS = 1
    MIDPOINTS = 2
    SQUARES = 3
    CENTROIDS = 4
    FIXED = 5
