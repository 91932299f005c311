"""Scores estimated from collinear keys' scores, the centres (LAD, section III-D, Algorithm 1)."""

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, memory

from hw.arith.float_format import FP16
from hw.arith.float_multiply import FloatMultiply, FloatMultiplyParameters
from hw.arith.square_root import SquareRoot, SquareRootParameters
from hw.arith.tables.lines import nearest
from hw.component import Component
from hw.lad.position_scan import PositionScan
from hw.lad.scores.nearest_centre import DIVIDE_STAGES, NearestCentre
from hw.lad.scores.score_source import score_source_ports
from hw.lad.tile_parameters import LadTileParameters
from hw.layout import FLAG
from hw.ports import Ports, wire_in, wire_out
from hw.stream.queue import Queue, QueueParameters

COLLINEAR = 0.98
"""Magnitude of the cosine above which a key joins a centre."""

TABLES = "norm", "dnorm", "cid"
"""Rows of a position's word in each: its length, relative to its centre's, its centre."""

PAIR = 2


class CentreScores(Component[LadTileParameters]):
    """s[i] = (q . K[cid[i]]) dnorm[i], for the positions before the window, in order.

    ::

        EAS.1, EAS.5   K[c] ─┬─→ VPU 0: q . K[c] ─→ scores of centres
                             └─→ VPU 1: k . K[c] ─→ / (norm norm[c]) ─→ largest |cos|
        EAS.2          cid[i] ─→ score of the centre ─→ × dnorm[i] ─→ s[i], two per cycle
        EAS.4          VPU 1: k . k ─→ square root ─→ norm of the new key

    A key is a centre if it is its own, ``cid[c] = c``. The new key k joins the centre with the
    largest magnitude of the cosine, the oldest of equals, if that exceeds 0.98; then cid is this
    centre and dnorm its length divided by the centre's, negative if it points the other way.
    Otherwise it is a new centre. That is done once for each kv head, with its first query head. A
    cosine that is NaN, as of a key of length 0, is ignored.

    Cycles: 3 tables of ceil((n - 1) / d) rows, then a centre per cycle, then a pair of scores per
    cycle; 40 besides.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            **score_source_ports(p),
            "first": wire_in(1, "First head of its kv head: work on the new key."),
            "centres": wire_out(p.number, "Number of centres read."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        self._table = Signal(range(len(TABLES)), name="table")
        self._waiting = Signal(range(8 + DIVIDE_STAGES), name="waiting")
        # Rows of tables not yet received; they are stored as they come, the rest is a key.
        self._remaining = Signal(range(len(TABLES) * p.table_rows + 1), name="remaining")
        arrives = self.response.valid & self.response.payload.table
        with m.If(arrives):
            m.d.sync += self._remaining.eq(self._remaining - 1)
        row = Signal(range(p.table_rows + 1))  # to be requested, of `table`
        rows = Signal.like(row)
        m.d.comb += [
            rows.eq((self.position + (p.d - 1)) >> p.element_bits),
            self.stored.eq(self.store),
            self.vector.ready.eq(1),
        ]
        ports = self._tables(m)
        scan, nearest_centre = self._centres(m, ports, rows)
        scaling = Signal()
        scored = Signal(range(p.positions + 2))
        self._scale(m, ports, scaling, scored)
        own, fire, tag = self._operations(m)
        received = Signal(range(p.positions + 1))
        # The centre's exact score is the estimate's basis and is stored by position.
        with m.If(fire & ~tag.own):
            m.d.sync += received.eq(received + 1)
        m.d.comb += [
            ports["write_score"].addr.eq(tag.position),
            ports["write_score"].data.eq(self.result.payload.dots[0]),
            ports["write_score"].en.eq(fire & ~tag.own),
        ]
        norm, has_norm = self._length(m, fire & tag.own)
        m.d.comb += [
            # Only the first head of a kv head compares the new key with the centres.
            nearest_centre.valid.eq(fire & ~tag.own & self.first),
            nearest_centre.position.eq(tag.position),
            nearest_centre.dot.eq(self.result.payload.dots[1]),
            nearest_centre.norm.eq(norm),
        ]
        with m.FSM():
            with m.State("IDLE"):
                # The next head begins with nothing received.
                m.d.sync += [x.eq(0) for x in (self._table, row, received, self._waiting)]
                with m.If(self.begin):
                    m.d.sync += [self._remaining.eq(len(TABLES) * rows), self.done.eq(0)]
                    m.d.sync += [self.centres.eq(0), scored.eq(0)]
                    m.next = "TABLES"
            self._table_states(m, row, rows, own, has_norm, scan)
            self._score_states(m, scan, nearest_centre, received, scaling, scored)
            self._store_states(m, ports, nearest_centre, norm)
            with m.State("DONE"):
                m.d.sync += self.done.eq(1)
                m.next = "IDLE"
        return m

    # Datapath

    def _centres(self, m: Module, ports, rows: Signal) -> tuple[PositionScan, NearestCentre]:
        """The scan that finds the centres, and the search for the new key's one."""
        p = self.parameters
        m.submodules.scan = scan = PositionScan(p)
        m.submodules.nearest = nearest_centre = NearestCentre(p, COLLINEAR)
        m.d.comb += [
            # A bit for each position says whether it is a centre; cosines need the tables' norms.
            scan.rows.eq(rows),
            scan.bits.eq(ports["is_centre"].data),
            ports["is_centre"].addr.eq(scan.row),
            ports["norm"].addr.eq(nearest_centre.norm_row),
            nearest_centre.norms.eq(ports["norm"].data),
            nearest_centre.begin.eq(self.begin),
        ]
        return scan, nearest_centre

    def _operations(self, m: Module) -> tuple[Signal, Signal, Any]:
        """A key to both VPUs; its position waits for the products.

        Keys of centres are multiplied by q in one VPU and by the new key in the other. Returns
        (k . k is the operation, products arrive, tag of their key).
        """
        p, response = self.parameters, self.response
        m.submodules.tags = tags = Queue(
            QueueParameters(depth=p.vpu.credits.credits),
            shape=data.StructLayout({"own": FLAG, "position": p.position}),
        )
        own = Signal()
        fire = Signal()
        arrives = response.valid & ~response.payload.table
        m.d.comb += [
            response.ready.eq(response.payload.table | (self.op.ready & tags.i.ready)),
            self.op.valid.eq((own | arrives) & tags.i.ready),
            *(
                vector.eq(Mux(own, Value.cast(self.k), Value.cast(response.payload.data)))
                for vector in map(Value.cast, self.op.payload.vectors)
            ),
            tags.i.valid.eq(self.op.valid & self.op.ready),
            tags.i.payload.own.eq(own),
            tags.i.payload.position.eq(response.payload.number),
            self.result.ready.eq(tags.o.valid),
            tags.o.ready.eq(self.result.valid),
            fire.eq(self.result.valid & tags.o.valid),
        ]
        return own, fire, tags.o.payload

    def _length(self, m: Module, arrives: Value) -> tuple[Signal, Signal]:
        """Length of the new key, the root of k . k. Returns (length, it is being stored)."""
        m.submodules.root = root = SquareRoot(SquareRootParameters(stages=1))
        norm = Signal(FP16)
        has_root = Signal()
        m.d.comb += root.x.eq(self.result.payload.dots[1])
        m.d.sync += has_root.eq(arrives)
        with m.If(has_root):
            m.d.sync += norm.eq(root.o)
        return norm, has_root

    # States

    def _table_states(self, m: Module, row, rows, own, has_norm, scan: PositionScan) -> None:
        """Rows of the tables, and the new key's length, before the first centre."""
        table, waiting = self._table, self._waiting
        with m.State("TABLES"):
            # Request the rows of one table after the other.
            with m.If(row == rows):
                m.d.sync += [row.eq(0), table.eq(table + 1)]
                with m.If(table == len(TABLES) - 1):
                    m.next = "OWN"
            with m.Else():
                self._access(m, table, row, Cat(row, table))
                with m.If(self.request.ready):
                    m.d.sync += row.eq(row + 1)
            with m.If((row == rows) & (rows == 0)):
                m.next = "OWN"
        with m.State("OWN"):
            # The new key's length, before the cosines need it.
            m.d.comb += own.eq(self.first & (waiting == 0))
            with m.If(self.first):
                with m.If(self.op.valid & self.op.ready):
                    m.d.sync += waiting.eq(1)
                with m.If(has_norm):
                    m.next = "WAIT"
            with m.Else():
                m.next = "WAIT"
        with m.State("WAIT"):
            # Which positions are centres is known when all rows are here.
            m.d.sync += waiting.eq(0)
            with m.If((self._remaining == 0) & self.go):
                m.d.comb += scan.begin.eq(1)
                m.next = "CENTRES"

    def _score_states(self, m: Module, scan, nearest_centre, received, scaling, scored) -> None:
        """Scores of the centres, then of all positions."""
        p, request = self.parameters, self.request
        with m.State("CENTRES"):
            # A centre's key is requested in each cycle; its products come behind the memory.
            centre = scan.positions
            with m.If(centre.valid):
                m.d.comb += [
                    request.valid.eq(1),
                    request.payload.number.eq(centre.payload),
                    request.payload.address.eq(
                        p.regions["k"].address_of(self.kv_head, centre.payload)
                    ),
                    centre.ready.eq(request.ready),
                ]
                with m.If(request.ready):
                    m.d.sync += self.centres.eq(self.centres + 1)
            with m.If(scan.finished & (received == self.centres)):
                m.next = "SCALE"
        with m.State("SCALE"):
            # EAS.2; the last cosines are still on their way.
            m.d.comb += scaling.eq(1)
            with m.If((scored >= self.old) & nearest_centre.idle):
                m.next = "DONE"
                with m.If(self.first):
                    m.next = "DIVIDE"

    def _store_states(self, m: Module, ports, nearest_centre, norm: Signal) -> None:
        """The new key's word of each table: it joins a centre, or is one."""
        p, request = self.parameters, self.request
        table, waiting = self._table, self._waiting
        joins, one = nearest_centre.joins, Const(nearest(1.0, FP16), FP16.width)
        dnorm = Signal(FP16, reset_less=True)
        new = {
            "norm": norm,
            "dnorm": dnorm,
            "cid": Mux(joins, nearest_centre.best, self.position),
        }
        old_rows = {
            name: Signal(p.row_layout, name=f"old_{name}", reset_less=True) for name in TABLES
        }
        its_row, in_row = self.position >> p.element_bits, self.position[: p.element_bits]
        with m.State("DIVIDE"):
            # dnorm; meanwhile the rows that hold the new position are read.
            divided = DIVIDE_STAGES + 2  # two cycles to the centre's norm
            m.d.sync += waiting.eq(waiting + 1)
            m.d.comb += nearest_centre.divide.eq(1)
            for name in ("dnorm", "cid"):
                m.d.comb += ports[name].addr.eq(its_row)
            with m.If(waiting >= divided):
                m.d.comb += ports["norm"].addr.eq(its_row)
            with m.If(waiting == divided):
                m.d.sync += dnorm.eq(Mux(joins, nearest_centre.quotient, one))
            with m.If(waiting == divided + 1):
                m.d.sync += [old_rows[name].eq(ports[name].data) for name in TABLES]
                m.d.sync += table.eq(0)
                m.next = "WRITE"
        with m.State("WRITE"):
            # The new position's word into its row of each table; zeros behind it.
            self._access(m, table, its_row, 0)
            m.d.comb += request.payload.write.eq(1)
            with m.Switch(table):
                for number, name in enumerate(TABLES):
                    with m.Case(number):
                        for e in range(p.d):
                            old = Mux(in_row > e, old_rows[name][e], 0) if e < p.d - 1 else 0
                            m.d.comb += request.payload.data[e].eq(Mux(in_row == e, new[name], old))
            with m.If(request.ready):
                m.d.sync += table.eq(table + 1)
                with m.If(table == len(TABLES) - 1):
                    m.next = "DONE"

    def _access(self, m: Module, table: Signal, row: Value, number: Value | int) -> None:
        """Request a row of one of the tables."""
        p, request = self.parameters, self.request
        m.d.comb += [
            request.valid.eq(1),
            request.payload.table.eq(1),
            request.payload.number.eq(number),
        ]
        with m.Switch(table):
            for place, name in enumerate(TABLES):
                with m.Case(place):
                    m.d.comb += request.payload.address.eq(
                        p.regions[name].address_of(self.kv_head, row)
                    )

    def _tables(self, m: Module) -> dict[str, Any]:
        """Memories of the three tables, of which positions are centres, and of their scores."""
        p = self.parameters
        response = self.response
        row_bits = len(Signal(range(p.table_rows + 1)))
        number, which = response.payload.number[:row_bits], response.payload.number[row_bits:]
        arrives = response.valid & response.payload.table
        ports: dict[str, Any] = {}
        for place, name in enumerate(TABLES):
            rows = memory.Memory(shape=p.row_bits, depth=p.table_rows, init=[])
            m.submodules[f"{name}_rows"] = rows
            write = rows.write_port()
            m.d.comb += [
                write.addr.eq(number),
                write.data.eq(response.payload.data),
                write.en.eq(arrives & (which == place)),
            ]
            ports[name] = rows.read_port()
        bits = memory.Memory(shape=p.d, depth=p.table_rows, init=[])
        m.submodules.is_centre = bits
        write = bits.write_port()
        own = Signal(p.d)  # a key is its own centre
        for e in range(p.d):
            position = (number << p.element_bits) + e
            m.d.comb += own[e].eq(
                (response.payload.data[e] == position) & (position < self.position)
            )
        m.d.comb += [
            write.addr.eq(number),
            write.data.eq(own),
            write.en.eq(arrives & (which == len(TABLES) - 1)),
        ]
        ports["is_centre"] = bits.read_port()
        scores = memory.Memory(shape=16, depth=p.positions, init=[])
        m.submodules.scores = scores
        ports["write_score"] = scores.write_port()
        ports["scores"] = [scores.read_port() for _ in range(PAIR)]
        return ports

    def _scale(self, m: Module, ports, scaling: Signal, scored: Signal) -> None:
        """EAS.2: pairs of positions, one pair per cycle.

        Cycle by cycle: read cid and dnorm; read the centres' scores; multiply, in two.
        """
        p = self.parameters
        following = Signal(range(p.positions + 2))
        delays: list[Any] = [Signal(_delay_layout(p), name=f"scale_{n}") for n in range(4)]
        issue = Signal()
        m.d.comb += issue.eq(scaling & (following < self.old))
        with m.If(issue):
            m.d.sync += following.eq(following + PAIR)
        with m.If(self.begin):
            m.d.sync += following.eq(0)
        m.d.sync += [
            delays[0].valid.eq(issue),
            delays[0].index.eq(following),
            *(after.eq(before) for before, after in zip(delays, delays[1:], strict=False)),
        ]
        for name in ("cid", "dnorm"):
            m.d.comb += ports[name].addr.eq(following >> p.element_bits)
        pairs = {
            name: data.ArrayLayout(PAIR * 16, p.d // PAIR)(Value.cast(ports[name].data))
            for name in ("cid", "dnorm")
        }
        place = delays[0].index[1 : p.element_bits]
        cid, dnorm = (Signal(data.ArrayLayout(16, PAIR), name=f"pair_{name}") for name in pairs)
        factors = Signal(data.ArrayLayout(16, PAIR), reset_less=True)  # dnorm, a cycle later
        m.d.comb += [cid.eq(Array(pairs["cid"])[place]), dnorm.eq(Array(pairs["dnorm"])[place])]
        m.d.sync += factors.eq(dnorm)
        for key in range(PAIR):
            read = ports["scores"][key]
            m.submodules[f"times_dnorm_{key}"] = times = FloatMultiply(
                FloatMultiplyParameters(stages=2)
            )
            m.d.comb += [
                read.addr.eq(cid[key]),
                times.a.eq(read.data),
                times.b.eq(factors[key]),
                self.score.s[key].eq(times.o),
            ]
        m.d.comb += [
            self.score.valid.eq(delays[3].valid),
            self.score.index.eq(delays[3].index),
        ]
        with m.If(self.score.valid):
            m.d.sync += scored.eq(scored + PAIR)


def _delay_layout(p: LadTileParameters) -> data.StructLayout:
    return data.StructLayout({"valid": 1, "index": range(p.positions + 2)})
