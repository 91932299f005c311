"""Registers behind AXI4-Lite, made from their map."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib.wiring import In

from hw.bus.axi import AXI4Lite, Response
from hw.bus.register_map import (
    CLEAR,
    CONSTANT,
    PULSE,
    READ_ONLY,
    READ_WRITE,
    Register,
    RegisterField,
    RegisterMap,
    Word,
)
from hw.component import Component
from hw.ports import Port, Ports, wire_in, wire_out


class Registers(Component[RegisterMap]):
    """An AXI4-Lite slave with the registers of a map.

    Each field that is not constant is a port, named ``REGISTER_FIELD``, or ``REGISTER`` for the
    only field of a register:

    ========= ===============================================================================
    access    port
    ========= ===============================================================================
    rw        output: the value
    ro        input: what a read returns
    w1c       input ``NAME_set``, whose bits set the field's; output ``NAME``: the value
    pulse     output: high for the one cycle behind a write of 1; reads as 0
    ========= ===============================================================================

    Where software clears a bit in the cycle in which hardware sets it, it stays set.

    A write takes effect byte by byte, as ``wstrb`` says, in the cycle in which its response is
    first offered; a byte of a ``w1c`` or ``pulse`` field that is not written does nothing. Bits
    that no field has read as 0 and ignore writes, as ``ro`` and constant fields do. An address
    that is in no register is answered with SLVERR, reads as 0, and changes nothing. The two low
    bits of an address, ``awprot`` and ``arprot`` are ignored.

    A read of the low word of a ``ro`` register of 64 bits keeps the high word of that cycle, which
    the next read returns if it is of the register's high word: so a counter is read whole.

    Latency: 2 cycles from the address (of a write: and the data) to the response. Throughput: a
    read in 2 cycles and a write in 2 cycles, independent of each other. Handshake: addresses and
    data are accepted in either order; every output depends on registers only. A second read or
    write is accepted while the response to the one before waits.
    """

    def ports(self) -> Ports:
        found: Ports = {
            "bus": Port(In(AXI4Lite(self.parameters.address_bits)), "The slave's side."),
        }
        for register in self.parameters.registers:
            for field in register.fields:
                found |= self._port(register.port(field), field)
        return found

    @staticmethod
    def _port(name: str, field: RegisterField) -> Ports:
        if field.access == CONSTANT:
            return {}
        if field.access == READ_ONLY:
            return {name: wire_in(field.width, field.words)}
        value = {name: wire_out(field.width, field.words, init=field.reset)}
        if field.access == CLEAR:
            value[f"{name}_set"] = wire_in(field.width, "Sets the bits.")
        return value

    def elaborate(self, platform):
        m = Module()
        self._write(m)
        self._read(m)
        return m

    def _write(self, m: Module) -> None:
        """Hold address and data until both are there and the response has room, then write."""
        aw, w, b = self.bus.aw, self.bus.w, self.bus.b
        address_held = Signal()
        data_held = Signal()
        write_address = Signal(len(aw.payload.addr))
        data = Signal.like(w.payload)
        write = Signal()
        m.d.comb += [
            # Address and data come in any order and at any distance (AXI4-Lite): each is held until
            # the other one is there.
            aw.ready.eq(~address_held),
            w.ready.eq(~data_held),
            # A write takes place when its response has a register to go to, so a response is never
            # lost.
            write.eq(address_held & data_held & (~b.valid | b.ready)),
        ]
        with m.If(b.ready):
            m.d.sync += b.valid.eq(0)
        with m.If(write):
            m.d.sync += [address_held.eq(0), data_held.eq(0), b.valid.eq(1)]
        with m.If(aw.valid & aw.ready):
            m.d.sync += [address_held.eq(1), write_address.eq(aw.payload.addr)]
        with m.If(w.valid & w.ready):
            m.d.sync += [data_held.eq(1), data.eq(w.payload)]

        # Software may write single bytes.
        mask = Cat(enabled.replicate(8) for enabled in data.strb)
        known: list[Value] = []
        for word in self.parameters.words:
            written = Signal(name=f"{word.name}_written")
            known.append(write_address[2:] == word.offset >> 2)
            m.d.comb += written.eq(write & known[-1])
            self._write_word(m, word, written, data.data, mask)
        with m.If(write):
            m.d.sync += b.payload.resp.eq(_response(Cat(known).any()))

    def _write_word(self, m: Module, word: Word, written: Signal, data: Value, mask: Value) -> None:
        """What software and hardware do to the fields of a word."""
        for whole, part in word.parts:
            if whole.access in (CONSTANT, READ_ONLY):
                continue
            name = word.register.port(whole)
            place = slice(part.low, part.low + part.width)
            first = word.shift + part.low - whole.low
            bits = getattr(self, name)[first : first + part.width]
            enabled = mask[place] & written.replicate(part.width)
            ones = data[place] & enabled
            # Bits whose strobe is 0 keep their value.
            if whole.access == READ_WRITE:
                m.d.sync += bits.eq((bits & ~enabled) | ones)
            # Write one to clear: an event in the cycle of the write is not lost, as setting comes
            # last.
            elif whole.access == CLEAR:
                arrives = getattr(self, f"{name}_set")[first : first + part.width]
                m.d.sync += bits.eq((bits & ~ones) | arrives)
            else:
                assert whole.access == PULSE, whole.access
                # High for the one cycle after the write, as `written` is.
                m.d.sync += bits.eq(ones)

    def _read(self, m: Module) -> None:
        """Hold the address until the response has room, then read."""
        ar, r = self.bus.ar, self.bus.r
        read_held = Signal()
        address = Signal(len(ar.payload.addr))
        read = Signal()
        m.d.comb += [ar.ready.eq(~read_held), read.eq(read_held & (~r.valid | r.ready))]
        with m.If(r.ready):
            m.d.sync += r.valid.eq(0)
        with m.If(read):
            m.d.sync += [read_held.eq(0), r.valid.eq(1)]
        with m.If(ar.valid & ar.ready):
            m.d.sync += [read_held.eq(1), address.eq(ar.payload.addr)]

        # A counter's high word, kept as its low word was read: `kept_of` is the high word's place.
        # A counter of 64 bits is read by two accesses; the high word of the moment of the first one
        # is kept, or a carry between them would make the number wrong by 2^32.
        kept = Signal(32)
        kept_of = Signal(len(address) - 2)
        keeps = Signal()
        low_word = Signal()
        value_high = Signal(32)
        value = Signal(32)
        known = Signal(init=1)
        with m.Switch(address[2:]):
            for word in self.parameters.words:
                with m.Case(word.offset >> 2):
                    register = self._value(word.register)
                    m.d.comb += value.eq(register[word.shift : word.shift + 32])
                    counts = [f.access for f in word.register.fields] == [READ_ONLY]
                    if word.register.bits == 64 and word.shift == 0 and counts:
                        m.d.comb += [low_word.eq(1), value_high.eq(register[32:])]
            with m.Default():
                # An address without a register is answered with an error, not with a hang.
                m.d.comb += known.eq(0)
        with m.If(read):
            m.d.sync += [
                r.payload.resp.eq(_response(known)),
                r.payload.data.eq(value),
                keeps.eq(low_word),
                kept.eq(value_high),
                kept_of.eq(address[2:] + 1),
            ]
            with m.If(keeps & (kept_of == address[2:])):
                m.d.sync += r.payload.data.eq(kept)

    def _value(self, register: Register) -> Value:
        """What a read of a register returns, 32 or 64 bits."""
        parts: list[Value] = []
        place = 0
        for field in sorted(register.fields, key=lambda field: field.low):
            parts.append(Const(0, field.low - place))
            place = field.low + field.width
            if field.access == CONSTANT:
                parts.append(Const(field.reset, field.width))
            elif field.access == PULSE:
                parts.append(Const(0, field.width))
            else:
                parts.append(getattr(self, register.port(field)))
        return Cat(*parts, Const(0, register.bits - place))


def _response(known: Value) -> Value:
    return Mux(known, Response.OKAY, Response.SLVERR)
