"""Attention of a language model on several of LAD's tiles, one session a layer (LAD, Fig. 4)."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from golden.lm.weights import Config
from hw.lad.system_parameters import TILES, LadSystemParameters
from hw.lad.tile_parameters import LadTileParameters
from sim.commands.engines.lad.attention import LadAttention, LadEngine
from sim.commands.engines.part import LayerRun
from sim.core import payload
from sim.core.stimulus import Mismatch, Outcome, Stimulus
from sim.testbenches.lad.lad_system import Jobs, testbench


class LadSystemAttention(LadAttention):
    """As :class:`LadAttention`; heads come in any order, and are compared by their number."""

    block = "lad.lad_system"

    def jobs(self, p: LadTileParameters) -> Jobs:
        assert isinstance(p, LadSystemParameters)
        return Jobs(p)

    @property
    def _heads_of_a_tile(self) -> int:
        assert isinstance(self._p, LadSystemParameters)
        return self._p.tile.heads

    def _mismatches(self, stimulus: Stimulus, outcome: Outcome) -> Sequence[Mismatch]:
        return testbench.compare(stimulus, outcome.outputs, self._design.outputs, outcome.cycles_of)

    def _outputs(self, outcome: Outcome) -> np.ndarray:
        beats = payload.unpack(self._design.outputs["o"], outcome.outputs["o"])
        return super()._outputs(outcome)[np.argsort(beats["head"])]


class LadSystemEngine(LadEngine):
    def parameters(self, config: Config, rows: int) -> LadSystemParameters:
        """The paper's six tiles, or one for each kv head if there are fewer."""
        tile = dataclasses.asdict(super().parameters(config, rows))
        return LadSystemParameters(**tile, tiles=min(TILES, config.kv_heads))

    def attention(self, run: LayerRun, rows: int) -> LadSystemAttention:
        return LadSystemAttention(run)


engine = LadSystemEngine()
