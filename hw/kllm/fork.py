"""Give each beat of a stream to several consumers."""

from amaranth.hdl import Cat, Module, Signal, Value


def fork(m: Module, name: str, source, sinks: list):
    """Give each beat to all sinks, to each as soon as it is ready, and then accept it.

    Each sink gets the fields of the beat that its payload has.
    """
    delivered = [Signal(name=f"{name}_delivered_{n}") for n in range(len(sinks))]
    passed = [sink.ready | had for sink, had in zip(sinks, delivered, strict=True)]
    m.d.comb += source.ready.eq(Cat(passed).all())
    for sink, had in zip(sinks, delivered, strict=True):
        m.d.comb += sink.valid.eq(source.valid & ~had)
        with m.If(source.valid):
            m.d.sync += had.eq(~source.ready & (had | sink.ready))
        given = Signal(source.payload.shape())  # for its layout, also where it is a Struct
        taken = Signal(sink.payload.shape())
        names = [name for name, _ in given.shape()]
        for name in (name for name, _ in taken.shape() if name in names):
            m.d.comb += Value.cast(sink.payload[name]).eq(Value.cast(source.payload[name]))
