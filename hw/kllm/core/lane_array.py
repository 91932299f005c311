"""The lanes of KLLM's core, which share control and step through equal work (KLLM, Fig. 5)."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value

from hw.arith.float_format import FP16
from hw.kllm.centroid_lane import CentroidLane
from hw.kllm.core.core_parameters import CoreParameters
from hw.kllm.core.score_path import ScorePath
from hw.kllm.core.step_join import SHARED, StepJoin
from hw.kllm.pe_lane import PeLane


def make_lanes(m: Module, p: CoreParameters) -> list[PeLane] | list[CentroidLane]:
    """Lanes that count indices, or that multiply fixed-point centroids, as submodules of `m`."""
    lanes: list = [
        CentroidLane(p.centroid_lane) if p.centroid_bits else PeLane(p.lane) for _ in range(p.lanes)
    ]
    for number, lane in enumerate(lanes):
        m.submodules[f"lane_{number}"] = lane
    return lanes


def give_steps(m: Module, p: CoreParameters, join: StepJoin, lanes, tables) -> None:
    """Give all lanes the same step, but each its own weights and scale."""
    # The weights' codebook of the step's bank goes to all lanes.
    step = join.o.payload
    codebook = Signal(len(tables["centroids"][0]))
    m.d.comb += [
        codebook.eq(Mux(step.bank, *reversed(tables["centroids"]))),
        join.o.ready.eq(lanes[0].i.ready),
    ]
    shared = {name: step[name] for name in SHARED} | {"codebook": codebook}
    if p.centroid_bits:
        shared = {name: shared[name] for name in ("entries", "advance", "last", "codebook")}
        shared |= _fixed_centroids(m, p.centroid_bits, step, tables)
    for number, lane in enumerate(lanes):
        own = {"weight": step.weight[number], "scale": step.scale[number]}
        m.d.comb += lane.i.valid.eq(join.o.valid)
        for name, value in (shared | own).items():
            m.d.comb += Value.cast(lane.i.payload[name]).eq(Value.cast(value))


def _fixed_centroids(m: Module, bits: int, step, tables) -> dict[str, Value]:
    """The step's fixed-point centroids: of activations, looked up once for all lanes."""
    codebooks = {}
    for name in ("fixed_activations", "fixed_weights"):
        size = len(tables[name][0]) // FP16.width
        codebook = Signal(bits * size, name=name)
        chosen = Mux(step.bank, *reversed(tables[name]))
        values = Cat(chosen.word_select(n, FP16.width)[:bits] for n in range(size))
        m.d.comb += codebook.eq(values)
        codebooks[name] = codebook
    activations = []
    for number, (index, counts) in enumerate(zip(step.activation, step.mask, strict=True)):
        centroid = Signal(bits, name=f"centroid_{number}")
        found = codebooks["fixed_activations"].word_select(index, bits)
        # A position that is masked contributes a centroid of 0.
        m.d.comb += centroid.eq(found & Value.cast(counts).replicate(bits))
        activations.append(centroid)
    return {"activation": Cat(activations), "fixed": codebooks["fixed_weights"]}


def give_products(m: Module, table, scales, lanes) -> None:
    """Give all lanes the groups of products, and each column its vector's scale.

    table
        The ProductTable; None where lanes multiply fixed-point centroids.
    """
    m.d.comb += scales.ready.eq(lanes[0].vector_scale.ready)
    if table is not None:
        m.d.comb += table.o.ready.eq(lanes[0].products.ready)
    for lane in lanes:
        if table is not None:
            m.d.comb += [
                lane.products.valid.eq(table.o.valid),
                lane.products.payload.as_value().eq(table.o.payload.as_value()),
            ]
        m.d.comb += [
            lane.vector_scale.valid.eq(scales.valid),
            lane.vector_scale.payload.eq(scales.payload),
        ]


def collect_results(m: Module, p: CoreParameters, commands, lanes, y, path: ScorePath) -> None:
    """Join the results of all lanes to one beat; lanes past the matrix's end are masked.

    Scores go to `path`, other results to `y`.
    """
    command = commands.payload
    done = Signal(range(p.n + 1))  # columns of earlier sets
    remaining = Signal(range(p.n + 1))
    vector = Signal(range(1, p.vectors + 1), init=1)
    batch_end = Signal()
    ready = Signal()
    fire = Signal()
    finished = Signal()  # the product's last beat is accepted
    # The command is held until the product's last beat. A partial product's beats are dropped.
    m.d.comb += [
        # Lanes beyond the matrix's last column have results of padding, which are masked.
        remaining.eq(command.columns - done),
        batch_end.eq(vector == command.vectors),
        y.valid.eq(lanes[0].o.valid & ~command.partial & ~command.softmax),
        path.results.valid.eq(lanes[0].o.valid & ~command.partial & command.softmax),
        Value.cast(path.results.payload).eq(Value.cast(y.payload)),
        path.vectors.eq(command.vectors),
        y.payload.last.eq((remaining <= p.lanes) & batch_end),
        ready.eq(Mux(command.softmax, path.results.ready, y.ready) | command.partial),
        fire.eq(lanes[0].o.valid & ready),
        finished.eq(fire & y.payload.last),
        commands.ready.eq(finished),
    ]
    for number, lane in enumerate(lanes):
        keep = Signal(name=f"keep_{number}")
        m.d.comb += [
            lane.o.ready.eq(ready),
            keep.eq(remaining > number),
            y.payload.y[number].eq(lane.o.payload.y & keep.replicate(FP16.width)),
            y.payload.invalid[number].eq(lane.o.payload.invalid & keep),
            y.payload.keep[number].eq(keep),
        ]
    # Vectors of a batch alternate within a set of columns.
    with m.If(fire):
        m.d.sync += vector.eq(Mux(batch_end, 1, vector + 1))
        with m.If(batch_end):
            m.d.sync += done.eq(Mux(finished, 0, done + p.lanes))
