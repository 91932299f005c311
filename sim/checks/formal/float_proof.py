"""Prove a combinational arithmetic unit against the floating-point theory of SMT-LIB.

Yosys writes the unit's outputs as bit-vector functions of its operands. What they should be is
written with ``fp.add`` and the solver's other IEEE 754 operations, so that no reference model of
this project has to be trusted. The solver is bitwuzla.

In a claim each port is a bit vector of its name, each floating-point port also a number named
``<port>_float``, and ``flush`` replaces subnormal numbers by zeros of their sign::

    (flush (fp.add RNE (flush a_float) (flush b_float)))

The solver's formats are IEEE 754's own. Another format is taken as the upper bits of the one with
the same exponent (BF16 of FP32): its numbers are widened, which is exact, and :func:`equals`
rounds a wide value to the upper bits. For a sum or a difference this second rounding is harmless,
as the wide format has more than twice the precision and small sums are exact. A product could be
rounded wrongly.
"""

import dataclasses
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import bitwuzla
from amaranth.back import rtlil

from hw.arith.float_format import FP16, FP32, FloatFormat
from sim.core.yosys import yosys

_SCRIPT = [
    "read_rtlil unit.il",
    "hierarchy -top unit",
    "prep -flatten",
    "write_smt2 -stbv unit.smt2",
]
_STATE, _WIDE = "|the state|", "|the wide bits|"


@dataclasses.dataclass(frozen=True)
class FloatProof:
    """How a proof ended.

    status
        ``PASS`` (holds for all operands), ``FAIL`` (refuted) or ``TIMEOUT``.
    seconds
        Wall-clock time.
    queries
        Number of queries that the solver answered.
    case
        The assumption under which the claim was refuted or given up.
    counterexample
        Bits of each port where the claim is wrong.
    """

    status: str
    seconds: float
    queries: int
    case: str = ""
    counterexample: dict[str, int] = dataclasses.field(default_factory=dict)


def prove(
    unit,
    claim: str,
    floats: Mapping[str, FloatFormat],
    cases: Iterable[str] = ("true",),
    seconds: float = 120,
) -> FloatProof:
    """Prove or refute that `claim` holds for all operands of `unit`, a combinational component.

    floats
        Formats of the ports that the claim uses as numbers; ``flush`` is for the first one's.
    cases
        Assumptions, one query each; together they must cover all operands.
    seconds
        Limit on each query.
    """
    definitions = _definitions(unit, floats)
    begin = time.monotonic()
    queries = 0
    for case in cases:
        options = bitwuzla.Options()
        options.set(bitwuzla.Option.PRODUCE_MODELS, True)
        options.set(bitwuzla.Option.TIME_LIMIT_PER, round(1000 * seconds))
        parser = bitwuzla.Parser(bitwuzla.TermManager(), options, "smt2")
        parser.parse(f"{definitions}(assert {case})\n(assert (not {claim}))\n", False, False)
        solver = parser.bitwuzla()
        answer = solver.check_sat()
        took = time.monotonic() - begin
        if answer == bitwuzla.Result.UNKNOWN:
            return FloatProof("TIMEOUT", took, queries, case)
        queries += 1
        if answer == bitwuzla.Result.SAT:
            ports = unit.signature.members
            bits = {port: solver.get_value(parser.parse_term(port)).value(10) for port in ports}
            values = {port: int(value) for port, value in bits.items()}
            return FloatProof("FAIL", took, queries, case, values)
    return FloatProof("PASS", time.monotonic() - begin, queries)


def equals(bits: str, expression: str, float_format: FloatFormat) -> str:
    """The claim that `bits` encode a number, with the sign of a zero and the one quiet NaN.

    `expression` is in the format that :func:`sort` names. If the format is not the solver's own, a
    claim may contain this for one number only.
    """
    wide = _wide(float_format)
    nan = constant(float_format.quiet_nan, float_format.width)
    padding = wide.width - float_format.width
    if not padding:
        return (
            f"(let ((exact {expression})) (and (= {to_float(bits, float_format)} exact)"
            f" (=> (fp.isNaN exact) (= {bits} {nan}))))"
        )
    # To nearest even: a carry out of the fraction raises the exponent, up to infinity.
    last = f"((_ zero_extend {wide.width - 1}) ((_ extract {padding} {padding}) {_WIDE}))"
    half = constant((1 << padding - 1) - 1, wide.width)
    rounded = f"((_ extract {wide.width - 1} {padding}) (bvadd {_WIDE} {half} {last}))"
    value = to_float(_WIDE, wide)
    return f"(=> (= {value} {expression}) (= {bits} (ite (fp.isNaN {value}) {nan} {rounded})))"


def exponent_differences(a: str, b: str, float_format: FloatFormat) -> list[str]:
    """Assumptions that cover all operands, for a unit that aligns `a` with `b`.

    One for each difference of their exponent fields at which the significands overlap or touch,
    and one for all differences beyond, on either side.
    """
    low, width = float_format.mantissa, float_format.exponent + 2
    high = low + float_format.exponent - 1
    fields = [f"((_ zero_extend 2) ((_ extract {high} {low}) {port}))" for port in (a, b)]
    difference = f"(bvsub {fields[0]} {fields[1]})"
    most = min(float_format.precision + 2, (1 << float_format.exponent) - 1)
    near = [f"(= {difference} {constant(d, width)})" for d in range(-most, most + 1)]
    above = f"(bvsgt {difference} {constant(most, width)})"
    below = f"(bvslt {difference} {constant(-most, width)})"
    return [*near, above, below]


def sort(float_format: FloatFormat) -> str:
    """The SMT-LIB sort of a format's numbers, or of the wide format's."""
    wide = _wide(float_format)
    return f"(_ FloatingPoint {wide.exponent} {wide.precision})"


def to_float(bits: str, float_format: FloatFormat) -> str:
    """The number of a bit vector."""
    wide = _wide(float_format)
    padding = wide.width - float_format.width
    widened = f"(concat {bits} {constant(0, padding)})" if padding else bits
    return f"((_ to_fp {wide.exponent} {wide.precision}) {widened})"


def constant(value: int, width: int) -> str:
    """A bit vector; a negative number in two's complement."""
    return f"(_ bv{value % (1 << width)} {width})"


def _wide(float_format: FloatFormat) -> FloatFormat:
    """The solver's format with the same exponent."""
    for wide in (FP16, FP32):
        if wide.exponent == float_format.exponent and float_format.infinities:
            return wide
    raise ValueError(f"no format of IEEE 754 has {float_format} as its upper bits")


def _definitions(unit, floats: Mapping[str, FloatFormat]) -> str:
    """SMT-LIB text: the unit's ports as functions of a state that the solver chooses."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "unit.il").write_text(rtlil.convert(unit, name="unit"))
        yosys(_SCRIPT, Path(folder), "write the unit's functions")
        text = (Path(folder) / "unit.smt2").read_text()
    first = next(iter(floats.values()))
    wide = _wide(first)
    zeros = [f"(_ {sign}zero {wide.exponent} {wide.precision})" for sign in "-+"]
    flushed = f"(ite (fp.isSubnormal x) (ite (fp.isNegative x) {zeros[0]} {zeros[1]}) x)"
    lines = [
        "(set-logic QF_BVFP)",
        text,
        f"(declare-const {_STATE} |unit_s|)",
        f"(declare-const {_WIDE} (_ BitVec {wide.width}))",
        f"(define-fun flush ((x {sort(first)})) {sort(first)} {flushed})",
    ]
    for port in unit.signature.members:
        width = len(getattr(unit, port))
        value = f"(|unit_n {port}| {_STATE})"
        if width == 1:  # a truth value there
            value = f"(ite {value} #b1 #b0)"
        lines.append(f"(define-fun {port} () (_ BitVec {width}) {value})")
    for port, float_format in floats.items():
        value = to_float(port, float_format)
        lines.append(f"(define-fun {port}_float () {sort(float_format)} {value})")
    return "\n".join(lines) + "\n"
