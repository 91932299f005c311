"""Outputs of the accelerator's own parts keep the rules of streams, for all time."""

from hw.kllm.index_buffer import IndexBuffer, IndexBufferParameters
from hw.kllm.outlier_split import OutlierSplit, OutlierSplitParameters
from tests.kllm.stream_rules import check_rules


def test_index_buffer():
    p = IndexBufferParameters(k=6, bits=1, lanes=1, segment=2, columns=3)
    check_rules(IndexBuffer(p), "index_buffer", "o", ["i", "replay"])


def test_outlier_split():
    p = OutlierSplitParameters(k=4, outliers=1, lanes=2)
    check_rules(OutlierSplit(p), "outlier_split", "outliers scale o", ["x"])
