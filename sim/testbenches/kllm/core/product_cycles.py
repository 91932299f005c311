"""Cycles of products by the accelerator, by its cycle model."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from golden.kllm.cycles import SoftmaxTiming, Timing, VectorWork, Work, core_cycles, listing_of
from hw.kllm import softmax_parameters as softmax
from hw.kllm.core.core_parameters import BEAT, IN_FLIGHT
from hw.kllm.core.product_work import ProductWork, table_rows
from hw.kllm.kllm_core import KllmCoreParameters

if TYPE_CHECKING:
    from sim.testbenches.kllm.core.products import Product


def cycles_of(
    p: KllmCoreParameters, products: Sequence["Product"], outliers: Sequence[np.ndarray]
) -> int:
    """Cycles of products in an idle core; `outliers` has each product's as ``bool[V, K]``.

    The last one has results, or is stored.
    """
    work = [work_of(p, *pair) for pair in zip(products, outliers, strict=True)]
    times = [*zip(products, core_cycles(timing_of(p), work), strict=True)]
    results = [t.result for product, t in times if not product.partial and not product.softmax]
    return max(*results, *(t.clustered for product, t in times if product.store), -1) + 1


def formula_work(product: "Product", work: Work) -> ProductWork:
    """The same product in the parameters' formula."""
    rows = [sum(vector.rows) for vector in work.vectors]
    beats, columns = len(work.vectors[0].listing), len(product.scale)
    options = work.groups, work.new_tables, work.normalise
    return ProductWork(rows, beats, work.outliers, columns, *options)


def work_of(p: KllmCoreParameters, product: "Product", outlier: np.ndarray) -> Work:
    """A product in the cycle model."""
    vectors = [
        VectorWork(
            *listing_of(marks, p.segment, BEAT, p.entries), function_cycles(p, product, marks)
        )
        for marks in outlier
    ]
    return Work(
        vectors,
        product.outliers,
        sets=-(-len(product.scale) // p.lanes),
        groups=1 if p.centroid_bits else -(-(product.lines() << p.weight_bits) // p.macs),
        new_tables=product.new_tables,
        normalise=product.norm is not None,
        softmax=product.softmax and not product.partial,
        weighted=product.weighted,
    )


def function_cycles(p: KllmCoreParameters, product: "Product", outlier: np.ndarray):
    """Cycles that a function takes for each beat's outliers; None without one."""
    if product.function is None:
        return None
    padded = np.zeros(-(-len(outlier) // BEAT) * BEAT, bool)
    padded[: len(outlier)] = outlier
    count = padded.reshape(-1, BEAT).sum(axis=1)
    return [p.codebook_replacement.wait(outliers) for outliers in count.tolist()]


def timing_of(p: KllmCoreParameters) -> Timing:
    """The cycle model's constants of a core."""
    stages = 0 if p.centroid_bits else p.counter_stages  # a lane that multiplies never stalls
    return Timing(
        load_rows=table_rows(p),
        table_rows=1 << p.activation_bits,
        search=p.outlier_split.search_of(1) - 1,
        setup=p.clustering_unit.setup,
        counted=p.rms_factor.column_counter.latency,
        summed=p.rms_factor.sum_latency - p.rms_factor.column_counter.latency,
        root=p.rms_factor.inverse_rms.latency,
        replace=p.codebook_replacement.rebuild,
        fetch=5,  # of a memory that answers in the next cycle
        stages=stages,
        tail=[p.lane_latency(groups) - stages for groups in range(p.groups + 1)],
        scale_sets=p.scale_sets,
        in_flight=IN_FLIGHT,
        softmax=SoftmaxTiming(
            softmax.ROWS,
            p.softmax.depth,
            softmax.MAXIMUM_LATENCY,
            softmax.SUM_LATENCY,
            softmax.OUTPUT_LATENCY,
            BEAT // p.lanes,
        ),
    )
