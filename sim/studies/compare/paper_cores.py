"""A layer's step on Token-Picker's core, UniCAIM's, LAD's tile or several, and KLLM's core."""

import dataclasses
from typing import Any

import numpy as np

from golden.algorithms.kllm.attention import OUTLIERS, fit_codebooks
from golden.algorithms.kllm.attention import quantize as indices_of
from golden.algorithms.topick.quantise import quantise, scale_for
from golden.unicaim.divisors import code_units, key_divisor, query_divisors
from hw.catalogue import find
from hw.kllm.core.core_parameters import BEAT
from hw.kllm.kllm_core import KllmCoreParameters
from hw.lad.system_parameters import LadSystemParameters
from hw.lad.tile_parameters import LadTileParameters
from hw.topick.core_parameters import TopickCoreParameters
from hw.unicaim.core_parameters import UnicaimCoreParameters
from sim.commands.engines.decode import power_of_two
from sim.core.design import generate
from sim.studies.compare.data import LayerData, Shape
from sim.studies.compare.decode_cores import kept_tokens
from sim.studies.compare.step import OTHER, K, LayerStep, V
from sim.testbenches.kllm.core.cached_rows import CachedRows
from sim.testbenches.kllm.core.products import results_of_all, stimulus_of, with_words_late
from sim.testbenches.lad.jobs import LadJobs
from sim.testbenches.lad.lad_system import Jobs as SystemJobs
from sim.testbenches.lad.lad_tile import Tokens
from sim.testbenches.memory import NAME
from sim.testbenches.topick.core_jobs import Jobs
from sim.testbenches.topick.pe_lane import codable, coded_head
from sim.testbenches.unicaim.core_jobs import CoreJobs


def topick_parameters(shape: Shape, knobs: dict[str, Any]) -> TopickCoreParameters:
    """The lanes share the tokens of each head, as the paper's do."""
    lanes = knobs["lanes"]
    return TopickCoreParameters(
        d=shape.d,
        lanes=lanes,
        lanes_per_head=lanes,
        tokens=power_of_two(max(32, 2 * lanes, shape.n)),
        heads=shape.heads,
        kv_heads=shape.kv_heads,
    )


def topick_step(p: TopickCoreParameters, shape: Shape, data: LayerData, knobs: dict) -> LayerStep:
    """The last token's; each head's q, and each kv head's K and V, have their own scale."""
    last, bits = shape.n - 1, p.bits
    q = data.q[:, last].astype(np.float64)
    scales = [scale_for(np.abs(x).max(axis=(1, 2)), bits) for x in (data.k, data.v)]
    k, v = (
        quantise(x.astype(np.float64), scale[:, None, None], bits).astype(np.int64)
        for x, scale in zip((data.k, data.v), scales, strict=True)
    )
    q_scale = scale_for(np.abs(q).max(axis=1), bits)
    codes = quantise(q, q_scale[:, None], bits)
    c = q_scale * np.repeat(scales[0], shape.group) * data.scale
    threshold = codable(p.lane, knobs["threshold"])
    jobs = Jobs(p, (k[:, :last], v[:, :last]))
    heads = [
        coded_head(p.lane, row, float(each), threshold, shape.n)
        for row, each in zip(codes, c, strict=True)
    ]
    jobs.add(heads, k[:, last], v[:, last])
    of = p.lane.chunks * p.rows
    design = generate(find("topick.topick_core"), p)
    return LayerStep(
        design,
        jobs.stimulus([]),
        jobs.memories(),
        lambda rows: np.where(rows // of & 1, V, K),
        f"threshold {threshold:.2g}, {p.lanes} lanes",
    )


def unicaim_parameters(shape: Shape, knobs: dict[str, Any]) -> UnicaimCoreParameters:
    """A serial array, whose rows are in a memory of the core, as their accumulations are."""
    parallel = UnicaimCoreParameters.parallel
    rows = max(2 * parallel, knobs["rows"] // parallel * parallel)
    return UnicaimCoreParameters(
        array="serial",
        query_bits=3,
        accumulators=parallel,
        rows=rows,
        d=shape.d,
        kv_heads=shape.kv_heads,
        group=shape.group,
    )


def unicaim_step(p: UnicaimCoreParameters, shape: Shape, data: LayerData, knobs: dict) -> LayerStep:
    """The last token's in each kv head, all rows being in use: a row is evicted in each."""
    tokens = kept_tokens(shape, p.rows)
    k, v = data.rows(tokens)
    jobs = CoreJobs(p)
    divisors = []
    for kv_head in range(shape.kv_heads):
        mean = k[kv_head].astype(np.float64).mean(axis=0).astype(np.float16)
        divisors.append(key_divisor(p, k[kv_head], mean))
        jobs.load(kv_head, mean, divisors[-1])
        for row in range(p.rows):
            jobs.preset(kv_head, k[kv_head, row], v[kv_head, row])
    since, memories = len(jobs), jobs.memories()
    before = jobs.inputs(), {"report": shape.kv_heads * p.rows}
    top_k = min(knobs["top_k"], p.rows)
    q, new_k, new_v = data.half(shape.n - 1)
    for kv_head, queries in enumerate(q.reshape(shape.kv_heads, -1, p.d)):
        found = query_divisors(p, queries)
        units = code_units(p, divisors[kv_head], found)
        jobs.step(kv_head, new_k[kv_head], new_v[kv_head], queries, found, top_k, units)
    bits = (p.rows - 1).bit_length()
    design = generate(find("unicaim.unicaim_core"), p)
    memory = {NAME: dataclasses.replace(memories[NAME], after=None)}
    return LayerStep(
        design,
        jobs.stimulus([], since=since),
        memory,
        lambda rows: np.where(rows >> bits & 1, V, K),
        f"{p.rows} rows, {top_k} selected",
        before=[before],
    )


def lad_parameters(shape: Shape, knobs: dict[str, Any]) -> LadTileParameters:
    return LadTileParameters(
        d=shape.d,
        positions=max(LadTileParameters.positions, power_of_two(shape.n)),
        heads=shape.heads,
        kv_heads=shape.kv_heads,
    )


def lad_step(p: LadTileParameters, shape: Shape, data: LayerData, knobs: dict) -> LayerStep:
    """The last token's; the model alone runs those before, and leaves all tables in the memory."""
    return _lad_step("lad.lad_tile", Tokens(p), shape, data)


def lad_system_parameters(shape: Shape, knobs: dict[str, Any]) -> LadSystemParameters:
    tile = dataclasses.asdict(lad_parameters(shape, knobs))
    return LadSystemParameters(**tile, tiles=knobs["tiles"], memory_ports=knobs["memory_ports"])


def lad_system_step(
    p: LadSystemParameters, shape: Shape, data: LayerData, knobs: dict
) -> LayerStep:
    """As :func:`lad_step`, by several tiles."""
    step = _lad_step("lad.lad_system", SystemJobs(p), shape, data)
    ports = "a memory each" if p.separate else "a memory that they share"
    knob = f"{step.knob}, {p.tiles} tiles, {ports}"
    return dataclasses.replace(
        step, knob=knob, kind_of=lambda rows: step.kind_of(rows % p.tile_rows)
    )


def _lad_step(block: str, tokens: LadJobs, shape: Shape, data: LayerData) -> LayerStep:
    p = tokens.parameters
    for token in range(shape.n):
        if token == shape.n - 1:
            tokens.join()
        tokens.add(*data.half(token), token + 1, restart=token == 0)
    regions = p.regions
    memories = tokens.memories()

    def kind_of(rows: np.ndarray) -> np.ndarray:
        kinds = np.full(len(rows), OTHER)
        for name, kind in (("k", K), ("v", V)):
            kinds[(rows >= regions[name].base) & (rows < regions[name].end)] = kind
        return kinds

    design = generate(find(block), p)
    knob = f"{len(p.apid.bound_values) + 1} intervals, slack {p.slack}"
    return LayerStep(design, tokens.stimulus([]), memories, kind_of, knob)


def kllm_parameters(shape: Shape, knobs: dict[str, Any]) -> KllmCoreParameters:
    """A word of memory has the positions of a head in four columns, the bits of a row in FP16."""
    tokens = power_of_two(max(32, shape.n))
    p = KllmCoreParameters(
        max(tokens, shape.d),
        max(tokens, shape.d),
        4,
        counters=max(1, shape.d // BEAT),
        macs=64,
        outliers=OUTLIERS,
        entries=2 * OUTLIERS,
        vectors=power_of_two(shape.group),
        scores=tokens,
    )
    words = shape.kv_heads * (p.words(shape.d, shape.n) + p.words(shape.n, shape.d))
    return dataclasses.replace(p, address_width=max((words - 1).bit_length(), p.beats.bit_length()))


def kllm_step(p: KllmCoreParameters, shape: Shape, data: LayerData, knobs: dict) -> LayerStep:
    """The last token's, whose own K and V have become indices in a step before this one.

    Codebooks are fitted to the tokens that they are used for.
    """
    codebooks = fit_codebooks(data.q, data.k, data.v, fitted=True)
    rows = CachedRows(p, codebooks, shape.d, shape.kv_heads, shape.n)
    q, k = codebooks.prepare(data.q[:, -1:], data.k)
    rows.append(indices_of(k, codebooks.k), indices_of(data.v, codebooks.v))
    products, addresses = rows.products(q[:, 0].astype(np.float16))
    rng = np.random.default_rng(1)
    stimulus = stimulus_of(p, products, addresses, results_of_all(p, products), rng)
    design = generate(find("kllm.kllm_core"), p)
    return LayerStep(
        design,
        with_words_late(p, stimulus, products),
        {NAME: rows.memory()},
        lambda words: np.where(rows.are_keys(words), K, V),
        f"{p.weight_bits} bits",
    )
