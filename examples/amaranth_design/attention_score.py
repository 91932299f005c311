"""Two blocks in an Amaranth design of one's own: the score q · k of quantised vectors, as FP16.

    .venv/bin/python -m examples.amaranth_design.attention_score

Simulates it in Amaranth's simulator against the blocks' models, and writes its Verilog.
"""

import random
from pathlib import Path

import numpy as np
from amaranth.hdl import Module, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from golden.arith.dot_product import dot_product
from golden.arith.fixed_to_float import fixed_to_float
from hw.arith.dot_product import DotProduct, DotProductParameters
from hw.arith.fixed_to_float import FixedToFloat, FixedToFloatParameters
from hw.arith.float_format import FP16
from hw.arith.streamed import Streamed
from hw.emit.export import to_rtlil, to_verilog

SIZE = 8  # elements of q and k, each of 8 bits
FRACTION = 10  # a score is an integer times 2^-10
OUTPUT = Path("build/examples/amaranth_design/attention_score.v")


class AttentionScore(wiring.Component):
    """2^-10 q · k of two int8 vectors, rounded once to FP16; a score each cycle."""

    DOT = DotProductParameters(format="fixed", n=SIZE, stages=1)
    CONVERT = FixedToFloatParameters(width=DOT.result.width, fraction=FRACTION, stages=2)

    i: In(
        stream.Signature(
            data.StructLayout(
                {"q": data.ArrayLayout(signed(8), SIZE), "k": data.ArrayLayout(signed(8), SIZE)}
            )
        )
    )
    o: Out(stream.Signature(FP16))

    def elaborate(self, platform):
        m = Module()
        # Arithmetic units have plain ports and an enable; Streamed adds valid and ready.
        m.submodules.dot = dot = Streamed(DotProduct(self.DOT))
        m.submodules.convert = convert = Streamed(FixedToFloat(self.CONVERT))
        m.d.comb += [
            dot.i.payload.a.eq(self.i.payload.q),
            dot.i.payload.b.eq(self.i.payload.k),
            dot.i.valid.eq(self.i.valid),
            self.i.ready.eq(dot.i.ready),
            # The exact sum goes from one unit to the next.
            convert.i.payload.a.eq(dot.o.payload.o),
            convert.i.valid.eq(dot.o.valid),
            dot.o.ready.eq(convert.i.ready),
            self.o.payload.eq(convert.o.payload.o),
            self.o.valid.eq(convert.o.valid),
            convert.o.ready.eq(self.o.ready),
        ]
        return m


def model(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """``float16[n]``: the scores of ``int8[n, SIZE]`` vectors."""
    return fixed_to_float(dot_product(q.astype(int), k.astype(int)), "fp16", fraction=FRACTION)


def simulate(q: np.ndarray, k: np.ndarray, seed: int = 1) -> list[int]:
    """FP16 bits of the hardware's scores, with stalls on both streams."""
    dut, scores = AttentionScore(), []

    async def send(ctx):
        choose = random.Random(f"{seed} send")
        for a, b in zip(q.tolist(), k.tolist(), strict=True):
            while choose.random() < 0.3:
                await ctx.tick()
            ctx.set(dut.i.payload, {"q": a, "k": b})
            ctx.set(dut.i.valid, 1)
            await ctx.tick().until(dut.i.ready)
            ctx.set(dut.i.valid, 0)

    async def receive(ctx):
        choose = random.Random(f"{seed} receive")
        while len(scores) < len(q):
            ctx.set(dut.o.ready, choose.random() < 0.7)
            tick = ctx.tick().sample(dut.o.payload, dut.o.valid, dut.o.ready)
            *_, payload, valid, ready = await tick
            if valid and ready:
                scores.append(payload)

    simulator = Simulator(dut)
    simulator.add_clock(1e-9)
    simulator.add_testbench(send)
    simulator.add_testbench(receive)
    simulator.run()
    return scores


def main() -> None:
    q, k = np.random.default_rng(seed=1).integers(-128, 128, (2, 50, SIZE)).astype(np.int8)
    scores = simulate(q, k)
    if scores != model(q, k).view(np.uint16).tolist():
        raise SystemExit("error: the scores differ from the model's")
    print(f"{len(scores)} scores equal the model's, bit for bit")

    # Equal sub-blocks become one module; amaranth.back.verilog.convert works as well.
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(to_verilog(to_rtlil(AttentionScore(), "attention_score")))
    print(f"wrote {OUTPUT}")


if __name__ == "__main__":
    main()
