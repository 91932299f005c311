"""Request and prune decision unit (Token-Picker, section 4.1)."""

import dataclasses

from amaranth.hdl import Module, Signal, signed, unsigned

from hw.arith.datapath import Datapath, DatapathParameters
from hw.parameters import require
from hw.ports import Ports, wire_in, wire_out


@dataclasses.dataclass(frozen=True)
class RpduParameters(DatapathParameters):
    """
    width
        Width of a score's and of the denominator's binary logarithm, signed.
    margin_bits, threshold_bits
        Widths of a margin and of the threshold, unsigned; less than `width`.
    """

    width: int = 32
    margin_bits: int = 27
    threshold_bits: int = 16

    def __post_init__(self):
        super().__post_init__()
        require(2 <= self.width <= 48, "width must be between 2 and 48", self.width)
        for name in ("margin_bits", "threshold_bits"):
            value = getattr(self, name)
            rule = f"{name} must be at least 1 and below {self.width} (width)"
            require(1 <= value < self.width, rule, value)

    @classmethod
    def presets(cls) -> dict[str, "RpduParameters"]:
        return {
            "small": cls(width=10, margin_bits=7, threshold_bits=5),
            "default": cls(),
            "pipelined": cls(stages=1),
        }


class Rpdu(Datapath[RpduParameters]):
    """prune if 2^(score + margin) / denominator <= threshold, else request the next chunk.

    In binary logarithms, with t = floor(s c) for the score s, `most` its margin rounded up,
    `threshold` = -log2(thr) rounded up and `log_denominator` rounded down:

        prune = known and threshold is not all ones and t + most + threshold < log_denominator

    As t + 1 > s c, a pruned token has s_max c + threshold < log_denominator, so that its
    probability is below thr; in the other direction the comparison is off by less than 3 units of
    the last bit. Without a denominator (``known`` low), or with a threshold of all ones, which
    means 0, no token is pruned. A token that is not pruned requests its next chunk, or is kept if
    this chunk was the last one.

    Example: with t = -40, most = 12 and threshold = 20, the sum is -8, so the token is pruned if
    log_denominator is -7 or more.

    Latency: `stages`. Overflow: none. Source: Token-Picker, section 4.1 (2), with ln for log2.

    Examples
    --------
    >>> from hw.topick.rpdu import Rpdu, RpduParameters
    >>> rpdu = Rpdu(RpduParameters(stages=1))
    >>> rpdu.t.shape(), rpdu.parameters.latency, rpdu.results
    (signed(32), 1, ('prune', 'request', 'keep'))
    """

    summary = "Decide whether a token is pruned, its next chunk requested, or kept"
    source = "Token-Picker, section 4.1"

    def operation(self) -> Ports:
        p = self.parameters
        return {
            "t": wire_in(signed(p.width), "Score on the chunks that were read, as a logarithm."),
            "most": wire_in(unsigned(p.margin_bits), "Most that the other chunks can add."),
            "threshold": wire_in(
                unsigned(p.threshold_bits), "Minus the threshold's logarithm; all ones: never."
            ),
            "log_denominator": wire_in(signed(p.width), "Logarithm of the denominator so far."),
            "known": wire_in(unsigned(1), "Whether there is a denominator."),
            "last": wire_in(unsigned(1), "Whether the chunk is a key's last."),
            "prune": wire_out(unsigned(1), "The token is dropped."),
            "request": wire_out(unsigned(1), "The key's next chunk is read."),
            "keep": wire_out(unsigned(1), "The token is kept; of these three, one is 1."),
        }

    def elaborate(self, platform):
        m = Module()
        cut = self.registers(m)
        # Upper bound of the score's logarithm, less the threshold's logarithm.
        upper = Signal(signed(self.parameters.width + 2))
        prune = Signal()
        request = Signal()
        keep = Signal()
        m.d.comb += [
            upper.eq(self.t + self.most + self.threshold),
            prune.eq(self.known & ~self.threshold.all() & (upper < self.log_denominator)),
            request.eq(~prune & ~self.last),
            keep.eq(~prune & self.last),
        ]
        prune, request, keep = cut("result", prune=prune, request=request, keep=keep)
        m.d.comb += [self.prune.eq(prune), self.request.eq(request), self.keep.eq(keep)]
        return m
