"""The digital arrays' search for the k largest scores, one bit of a threshold per step."""

from amaranth.hdl import Cat, Module, Signal, Value


def threshold_search(
    m: Module, array, scores: list, used: Signal, begin: Signal, answered: Signal
) -> None:
    """Drive the payload of the array's `lines`; see :class:`hw.unicaim.digital_array.DigitalArray`.

    begin
        The scores are complete in the next cycle, the first step's.
    answered
        The step's answer is in `too_many`; the next cycle has the next step.
    """
    lines = array.lines.payload
    steps, rows = len(Value.cast(scores[0])), len(scores)
    position = Signal(steps, reset_less=True)  # one-hot: the bit tried in this step
    above = Signal(rows, reset_less=True)  # rows above every threshold still possible
    tied = Signal(rows, reset_less=True)  # rows that equal the threshold in all bits so far
    bits = Signal(rows)
    m.d.comb += [
        # Offset binary, with the sign bit inverted: an unsigned comparison, bit by bit. No
        # score is the lowest number of its width, so none is 0 here.
        bits.eq(Cat((Cat(s[:-1], ~s[-1]) & position).any() for s in map(Value.cast, scores))),
        # At least the threshold with this bit set: above it already, or equal so far and set.
        lines.high.eq(above | (tied & bits)),
        lines.last.eq(position[0]),
    ]
    with m.If(begin):
        m.d.sync += [position.eq(1 << (steps - 1)), above.eq(0), tied.eq(used)]
    with m.If(answered):
        m.d.sync += position.eq(position >> 1)
        with m.If(array.too_many.payload):
            m.d.sync += tied.eq(tied & bits)  # the bit of the threshold is 1
        with m.Else():
            m.d.sync += [above.eq(lines.high), tied.eq(tied & ~bits)]  # it is 0
