"""Cycles of products on KLLM's core, by a formula."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from hw.kllm.core.core_parameters import CoreParameters


class ProductWork(NamedTuple):
    """A product, for :meth:`hw.kllm.core.core_parameters.CoreParameters.cycles`.

    rows
        For each vector of the batch, the steps of a column: rows of outliers of all its words.
    beats
        Number of beats of 16 values of each vector.
    outliers
        Number of outliers at each end of each vector.
    columns
        Number of columns of the matrix.
    groups
        Number of groups of bins in use.
    tables
        Whether tables are loaded for it.
    normalise
        Whether it is normalised.
    """

    rows: Sequence[int]
    beats: int
    outliers: int
    columns: int
    groups: int
    tables: bool = False
    normalise: bool = False


def table_rows(p: "CoreParameters") -> int:
    """Beats of `tables` for one set of tables."""
    # A row of each of the four other tables, and all rows of products or two of fixed point.
    return (2 if p.centroid_bits else 1 << p.activation_bits) + 4


def product_cycles(p: "CoreParameters", work: Sequence[ProductWork]) -> int:
    """See :meth:`hw.kllm.core.core_parameters.CoreParameters.cycles`."""
    squares = p.rms_factor.sum_latency
    accepted = arrived = done = groups = 0
    for product in work:
        accepted += 1 + product.tables * table_rows(p)
        # The vectors pass one after the other, a beat or an outlier a cycle, each twice.
        search = p.outlier_split.search_of(max(1, product.outliers)) + p.clustering_unit.setup
        listed = max(product.beats, 2 * product.outliers)
        vector = product.beats + search + listed
        scale = squares + product.normalise * p.rms_factor.inverse_rms.latency
        arrived = max(arrived, accepted) + len(product.rows) * vector
        # The lanes take a step a cycle, and a group a cycle of the column before.
        sets = -(-product.columns // p.lanes)
        busy = sum(max(rows, product.groups) for rows in product.rows)
        begin = max(done, arrived + len(product.rows) * scale)
        done = begin + sets * busy + -(-sets // p.scale_sets)
        groups = product.groups
    return done + p.lane_latency(groups)
