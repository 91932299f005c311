"""Payloads between EAS and the block that estimates the scores of keys that are not read whole.

Such a block, :class:`hw.lad.scores.code_scores.CodeScores` or
:class:`hw.lad.scores.centre_scores.CentreScores`, has these ports:

store, k, position, kv_head, stored
    Work on the new key, at `position`: `store` is high until `stored`, with its operands.
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

from amaranth.lib import data

from hw.arith.float_format import FP16
from hw.lad.tile_parameters import LadTileParameters
from hw.layout import FLAG, address, index, position
from hw.ports import Ports, stream_in, stream_out, wire_in, wire_out


def score_source_ports(p: LadTileParameters) -> Ports:
    """Ports of a block that estimates scores."""
    return {
        "store": wire_in(1, "Work on the new key: high until `stored`, with its operands."),
        "begin": wire_in(1, "Request the tables of a head."),
        "go": wire_in(1, "Products may begin."),
        "kv_head": wire_in(p.kv_head_index, "The kv head of all of them."),
        "position": wire_in(p.position, "Position of the new key."),
        "old": wire_in(p.number, "Number of positions to score, the first ones."),
        "k": wire_in(p.row_layout, "The new key."),
        "stored": wire_out(1, "The work on the new key is done."),
        "done": wire_out(1, "All their scores have left."),
        "request": stream_out(
            source_read_layout(p), "Rows of its tables (``table``), or others, from the memory."
        ),
        "response": stream_in(source_answer_layout(p), "These rows."),
        "op": stream_out(
            operation_layout(p),
            "Work for EAS's two VPUs: products of a vector for each, or, with ``scale``, a vector "
            "times a factor in the first one.",
        ),
        "vector": stream_in(p.row_layout, "Results of ``scale``."),
        "result": stream_in(result_layout(), "Dot products, in the order of their operations."),
        "score": wire_out(
            score_layout(p), "Scores of positions ``index``, which is even, and ``index`` + 1."
        ),
    }


def score_command_layout(p: LadTileParameters) -> data.StructLayout:
    """A head of a token with ``n`` positions; ``first`` of its kv head."""
    return data.StructLayout(
        {"head": p.head_index, "kv_head": p.kv_head_index, "n": p.number, "first": FLAG}
    )


def source_read_layout(p: LadTileParameters) -> data.StructLayout:
    return data.StructLayout(
        {
            "table": FLAG,
            "number": index(p.label_bits - 2),
            "address": address(p.address_width),
            "write": FLAG,
            "data": p.row_layout,
        }
    )


def source_answer_layout(p: LadTileParameters) -> data.StructLayout:
    return data.StructLayout(
        {"table": FLAG, "number": index(p.label_bits - 2), "data": p.row_layout}
    )


def operation_layout(p: LadTileParameters) -> data.StructLayout:
    """``vectors``: one for each VPU, multiplied with its register; or the first one ``scale``d by
    ``factor``."""
    return data.StructLayout(
        {"scale": FLAG, "factor": FP16, "vectors": data.ArrayLayout(p.row_layout, 2)}
    )


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
