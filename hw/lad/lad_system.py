"""Several tiles side by side (LAD, Fig. 4)."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring

from hw.component import Component
from hw.lad.lad_tile import LadTile
from hw.lad.system_parameters import LadSystemParameters
from hw.ports import Ports, stream_in, stream_out
from hw.stream.arbiter import Arbiter, ArbiterParameters
from hw.stream.combine import copy, join
from hw.stream.queue import Queue, QueueParameters

__all__ = ["LadSystem", "LadSystemParameters"]


class LadSystem(Component[LadSystemParameters]):
    """:class:`LadTile` for more heads: kv head k and its query heads are in tile k mod tiles.

    ::

                 ┌─→ part of its heads ─→ ┌─────────┐ ─→ o, report ─┐
        command ─┤                        │ LadTile │               ├─→ arbiters ─→ o, report
        kv, q ───┴─→ queue of rows ─────→ └─────────┘ × tiles       ┘
                                              ↑↓
                          arbiter, one memory port; or a port each

    A command is divided into one command for each tile; a tile without heads gets none. Rows of
    ``kv`` and ``q`` arrive in the order of the command's heads and go to a queue before the head's
    tile, which holds the rows of a whole command, so that no tile waits until another has accepted
    its rows. Outputs and reports carry the number of their head, because tiles finish in any order.
    A command waits until all tiles have finished the one before.

    A tile's rows of memory are its own, mapped as ``parameters.tile.regions``. On a port that all
    share, tile t's begin at row t * ``parameters.tile_rows``; with as many `memory_ports` as tiles,
    tile t's port has them alone, from row 0.

    Errors: as :class:`LadTile`'s; a command is refused, too, if its group is larger than a tile's
    number of heads, or a tile's part of the heads is; up to `heads` / `kv_heads` heads a group
    always fit. A tile's heads are ``invalid`` until a command with `restart` has given it a head.

    Throughput: a shared port takes one request a cycle from all tiles in turn (round robin), so
    tiles add up only as far as they compute rather than read; a command takes at least as many
    cycles as rows are read and written in all tiles, or with separate ports in one of them.
    With a number of kv heads that is no multiple of `tiles`, some tiles wait for the others.

    Handshake: ``request``, ``o`` and ``report`` are registers. ``response.ready`` depends on the
    response's tag. A response that was not requested is an error of the memory.

    Examples
    --------
    >>> from hw.lad.lad_system import LadSystemParameters
    >>> parameters = LadSystemParameters(tiles=2, heads=9, kv_heads=3)
    >>> parameters.tile.kv_heads, parameters.tile.heads
    (2, 6)
    >>> parameters.memory_rows == 2 * parameters.tile_rows
    True
    """

    summary = "A token's attention on several tiles, on one memory port or one each"
    source = "LAD, section IV and Fig. 4"

    def ports(self) -> Ports:
        p = self.parameters
        memory = p.memory.ports()
        if p.separate:
            memory = {name: port.array(p.tiles) for name, port in memory.items()}
        return {
            "command": stream_in(p.command_layout, "As a tile's."),
            "kv": stream_in(p.row_layout, "K, then V, of each kv head."),
            "q": stream_in(p.row_layout, "One for each head."),
            **memory,
            "o": stream_out(
                p.output_layout,
                "One for each head of the command, in any order of heads of different tiles.",
            ),
            "report": stream_out(p.report_layout, "Likewise; refused commands."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        tiles = [LadTile(p.tile) for _ in range(p.tiles)]
        for number, tile in enumerate(tiles):
            m.submodules[f"tile_{number}"] = tile
        # kv heads are dealt to tiles in turn, whole: heads of a group share a row of K and V, which
        # then is in one tile's memory (LAD, IV-D and Fig. 6).
        job = Signal(p.command_layout, reset_less=True)
        kv_heads = Signal(range(p.kv_heads + 1))
        begin = Signal()  # the command's numbers are known; its rows may be accepted
        remaining = Signal(range(p.heads + 1))  # heads whose o has not been accepted
        steps = Signal(init=1)  # the command is a token's step, with rows, o and reports
        if p.prefetch:
            m.d.comb += steps.eq(job.prefetch == 0)
        refused = Signal()  # a command is refused, and to be reported
        reported = Signal()  # that report is accepted
        self._sequence(m, tiles, job, kv_heads, begin, remaining, steps, refused, reported)

        kv_rows, q_rows = 2 * kv_heads, job.heads
        self._deal(m, "kv", self.kv, [t.kv for t in tiles], begin & steps, kv_rows, 2)
        self._deal(m, "q", self.q, [t.q for t in tiles], begin & steps, q_rows, job.group)
        self._connect_memory(m, tiles)
        self._collect(m, tiles, job.group, begin, remaining, refused, reported)
        return m

    def _sequence(
        self, m, tiles, job, kv_heads, begin, remaining, steps, refused, reported
    ) -> None:
        """Count the heads of each tile, give each tile its command, wait for all tiles."""
        p = self.parameters
        offered = self.command.payload
        shares = [Signal(range(p.tile.heads + 1), name=f"share_{n}") for n in range(p.tiles)]
        share = Signal.like(shares[0], name="share")  # of the next kv head's tile
        turn = Signal(p.tile_index)  # the next kv head's tile
        covered = Signal(range(p.heads + 1))  # heads of the kv heads counted so far
        rest = Signal.like(covered)
        group = Signal.like(covered)  # heads of the next kv head
        fits = Signal()  # the command that is offered, as far as its numbers alone say
        begins: Value = offered.restart
        if p.prefetch:
            begins = begins & (offered.prefetch == 0)
        m.d.comb += [
            fits.eq(
                ~p.order.misfits(offered)
                & (offered.group <= p.tile.heads)
                & (begins | ((offered.n != 0) & (offered.n <= p.positions)))
            ),
            rest.eq(job.heads - covered),
            group.eq(Mux(rest < job.group, rest, job.group)),
        ]
        with m.Switch(turn):
            for number, of_tile in enumerate(shares):
                with m.Case(number) if number < p.tiles - 1 else m.Default():
                    m.d.comb += share.eq(of_tile)
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += remaining.eq(remaining - 1)
        with m.FSM():
            # A command's numbers are checked before any row is accepted, so a bad one cannot
            # desynchronise kv and q.
            with m.State("IDLE"):
                m.d.comb += self.command.ready.eq(1)
                m.d.sync += [x.eq(0) for x in (covered, kv_heads, turn, *shares)]
                with m.If(self.command.valid):
                    m.d.sync += job.eq(offered)
                    m.next = "COUNT"
                    with m.If(~fits):
                        m.next = "REFUSED"
            with m.State("REFUSED"):
                # A command that cannot be computed is reported and changes nothing.
                m.d.comb += refused.eq(1)
                with m.If(reported):
                    m.next = "ATTEND"
            with m.State("COUNT"):
                # A kv head a cycle.
                with m.If(rest == 0):
                    m.d.comb += begin.eq(1)
                    m.d.sync += remaining.eq(Mux(steps, job.heads, 0))
                    m.next = "DEAL"
                with m.Elif(share + group > p.tile.heads):
                    # Too many heads for a tile.
                    m.next = "REFUSED"
                with m.Else():
                    m.d.sync += [
                        covered.eq(covered + group),
                        kv_heads.eq(kv_heads + 1),
                        turn.eq(Mux(turn == p.tiles - 1, 0, turn + 1)),
                    ]
                    for number, of_tile in enumerate(shares):
                        with m.If(turn == number):
                            m.d.sync += of_tile.eq(share + group)
            with m.State("DEAL"):
                # All tiles are idle since the command before, so each accepts its own at once.
                self._command(m, tiles, job, shares)
                m.next = "ATTEND"
            with m.State("ATTEND"):
                # A tile accepts a command when all writes of the one before have been accepted.
                with m.If((remaining == 0) & Cat(tile.command.ready for tile in tiles).all()):
                    m.next = "IDLE"

    def _command(self, m: Module, tiles: list[LadTile], job, shares: list) -> None:
        """The tiles' commands, each with its share of the heads."""
        for tile, of_tile in zip(tiles, shares, strict=True):
            command = tile.command.payload
            m.d.comb += tile.command.valid.eq(of_tile != 0)
            m.d.comb += [getattr(command, name).eq(getattr(job, name)) for name, _ in job.shape()]
            m.d.comb += command.heads.eq(of_tile)

    def _deal(self, m: Module, name: str, rows, ports, begin, count, size) -> None:
        """Hand `count` rows to the tiles' queues in turn, `size` rows at a time."""
        p = self.parameters
        all_rows, most = p.heads, p.tile.heads
        if name == "kv":
            all_rows, most = 2 * p.kv_heads, 2 * p.tile.kv_heads
        remaining = Signal(range(all_rows + 1), name=f"{name}_remaining")
        # Among `size` rows: two of a kv head, or as many as a kv head has query heads.
        index = Signal(range(2 if name == "kv" else max(2, most)), name=f"{name}_index")
        turn = Signal(p.tile_index, name=f"{name}_tile")
        m.d.comb += rows.ready.eq(remaining != 0)
        with m.If(begin):
            m.d.sync += [remaining.eq(count), index.eq(0), turn.eq(0)]
        with m.Elif(rows.valid & rows.ready):
            m.d.sync += [remaining.eq(remaining - 1), index.eq(index + 1)]
            with m.If(index + 1 == size):
                m.d.sync += [index.eq(0), turn.eq(Mux(turn == p.tiles - 1, 0, turn + 1))]
        for number, port in enumerate(ports):
            # A queue has room for all rows of its tile, and is empty when they begin to come: rows
            # come in the order of heads, tiles take theirs when they can, and a tile that is late
            # must not block the next one's rows (that is the deadlock avoided).
            queue = Queue(QueueParameters(depth=most), shape=p.row_layout)
            m.submodules[f"{name}_{number}"] = queue
            m.d.comb += [
                queue.i.valid.eq(rows.valid & rows.ready & (turn == number)),
                queue.i.payload.eq(rows.payload),
            ]
            wiring.connect(m, queue.o, port)

    def _connect_memory(self, m: Module, tiles: list[LadTile]) -> None:
        """One port: requests in turn, responses by the tile in their tag; or a port each."""
        p = self.parameters
        if p.separate:
            for tile, request, response in zip(tiles, self.request, self.response, strict=True):
                wiring.connect(m, tile.request, wiring.flipped(request))
                wiring.connect(m, wiring.flipped(response), tile.response)
            return
        m.submodules.requests = arbiter = Arbiter(
            ArbiterParameters(inputs=p.tiles), shape=p.tile.memory.request_layout
        )
        for tile, port in zip(tiles, arbiter.i, strict=True):
            wiring.connect(m, tile.request, port)
        o, request, response = arbiter.o, self.request, self.response
        read = o.payload.data
        m.d.comb += [
            # A tile's memory is a part of the address space: tiles share no row, so the order of
            # their requests does not matter.
            request.payload.tag.tile.eq(o.payload.source),
            request.payload.tag.tag.eq(read.tag),
            # | tile | row of the tile |
            request.payload.address.eq(Cat(read.address, o.payload.source)),
            request.payload.write.eq(read.write),
            Value.cast(request.payload.data).eq(Value.cast(read.data)),
        ]
        join(m, [o], [request])
        for number, tile in enumerate(tiles):
            chosen = response.payload.tag.tile == number
            m.d.comb += [
                tile.response.valid.eq(response.valid & chosen),
                tile.response.payload.tag.eq(response.payload.tag.tag),
                Value.cast(tile.response.payload.data).eq(Value.cast(response.payload.data)),
            ]
            with m.If(chosen):
                m.d.comb += response.ready.eq(tile.response.ready)

    def _collect(
        self, m: Module, tiles: list[LadTile], group, begin, remaining, refused, reported
    ) -> None:
        """Outputs and reports of the tiles, one at a time, with the numbers of their heads."""
        p = self.parameters
        m.submodules.outputs = outputs = Arbiter(
            ArbiterParameters(inputs=p.tiles), shape=p.head_output_layout
        )
        m.submodules.reports = reports = Arbiter(
            ArbiterParameters(inputs=p.tiles + 1), shape=p.report_layout
        )
        # The last input is of refused commands.
        refusal = reports.i[p.tiles]
        m.d.comb += [
            refusal.valid.eq(refused),
            refusal.payload.error.eq(1),
            reported.eq(refusal.ready),
        ]
        for number, tile in enumerate(tiles):
            for name, of_tile, port in (
                ("o", tile.o, outputs.i[number]),
                ("report", tile.report, reports.i[number]),
            ):
                accepted = of_tile.valid & of_tile.ready
                # Outputs of tiles interleave; within a tile they are in order, so counting gives
                # the head's number.
                head = self._heads(m, f"{name}_{number}", number, group, begin, accepted)
                m.d.comb += [*copy(port.payload, of_tile.payload), port.payload.head.eq(head)]
                join(m, [of_tile], [port])
        o, report = outputs.o.payload.data, reports.o.payload.data
        m.d.comb += [
            *copy(self.o.payload, o),
            self.o.payload.last.eq(remaining == 1),
            self.report.payload.eq(report),
        ]
        join(m, [outputs.o], [self.o])
        join(m, [reports.o], [self.report])

    def _heads(self, m: Module, name: str, tile: int, group, begin, accepted) -> Signal:
        """Number of the head whose beat a tile offers; the numbers come in ascending order."""
        p = self.parameters
        # After a tile's last head comes a number that no beat has, so it may wrap around.
        head = Signal(p.head_index, name=f"{name}_head")
        index = Signal(range(max(2, p.tile.heads)), name=f"{name}_index")  # of a kv head
        with m.If(begin):
            m.d.sync += [head.eq(tile * group), index.eq(0)]
        with m.Elif(accepted):
            m.d.sync += [head.eq(head + 1), index.eq(index + 1)]
            with m.If(index + 1 == group):
                # The kv heads between are the other tiles'.
                m.d.sync += [head.eq(head + 1 + (p.tiles - 1) * group), index.eq(0)]
        return head
