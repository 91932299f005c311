"""Amaranth's simulator around a part of the link."""

from amaranth.sim import Simulator


def simulate(component, bench, *others):
    """Run a test bench to its end, with others in the background."""
    simulator = Simulator(component)
    simulator.add_clock(1e-6)
    done = []

    async def main(ctx):
        await bench(ctx)
        done.append(True)

    simulator.add_testbench(main)
    for other in others:
        simulator.add_testbench(other, background=True)
    simulator.run()
    assert done
