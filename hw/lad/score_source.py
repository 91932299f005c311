"""Payloads between EAS and the block that estimates the scores of keys that are not read whole.

Such a block, :class:`hw.lad.code_scores.CodeScores` or
:class:`hw.lad.centre_scores.CentreScores`, has these ports:

store, k, position, kv_head, stored
    Work on the new key, at `position`: `store` stays high until `stored`, with its operands.
begin, go, old, done
    Scores of the first `old` positions of a head: their tables are requested from `begin` on,
    products begin once `go` is high.
request, response
    Rows of memory: of its tables (``table``), or others.
op, vector, result
    EAS's two VPUs: products of a vector for each of them, and their dot products in order; or, with
    ``scale``, a vector times a factor in the first one.
score
    A pair of scores, of positions ``index`` and ``index`` + 1; index is even.
"""

from typing import Any

from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from hw.arith.float_format import FP16
from hw.lad.tile_parameters import LadTileParameters
from hw.layout import FLAG, address, index, position


def score_source_ports(p: LadTileParameters) -> dict[str, Any]:
    """The ports above."""
    return {
        "store": In(1),
        "begin": In(1),
        "go": In(1),
        "kv_head": In(p.kv_head_index),
        "position": In(p.position),
        "old": In(p.number),
        "k": In(p.row),
        "stored": Out(1),
        "done": Out(1),
        "request": Out(stream.Signature(source_read_layout(p))),
        "response": In(stream.Signature(source_answer_layout(p))),
        "op": Out(stream.Signature(operation_layout(p))),
        "vector": In(stream.Signature(p.row)),
        "result": In(stream.Signature(result_layout())),
        "score": Out(score_layout(p)),
    }


def source_read_layout(p: LadTileParameters) -> data.StructLayout:
    return data.StructLayout(
        {
            "table": FLAG,
            "number": index(p.label_bits - 2),
            "address": address(p.address_bits),
            "write": FLAG,
            "data": p.row,
        }
    )


def source_answer_layout(p: LadTileParameters) -> data.StructLayout:
    return data.StructLayout({"table": FLAG, "number": index(p.label_bits - 2), "data": p.row})


def operation_layout(p: LadTileParameters) -> data.StructLayout:
    """``vectors``: one for each VPU, multiplied with its register; or the first one ``scale``d by
    ``factor``."""
    return data.StructLayout({"scale": FLAG, "factor": FP16, "vectors": data.ArrayLayout(p.row, 2)})


def result_layout() -> data.StructLayout:
    return data.StructLayout({"dots": data.ArrayLayout(FP16, 2)})


def score_layout(p: LadTileParameters) -> data.StructLayout:
    return data.StructLayout(
        {
            "valid": FLAG,
            "index": position(range(p.positions + 2)),
            "s": data.ArrayLayout(FP16, 2),
        }
    )
