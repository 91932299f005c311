"""A block's memory in the board's SDRAM."""

from hw.boards.block_memory import BoardMemory, ServedMemory
from hw.boards.sdram_controller import SdramController, sdram_pins
from hw.boards.sdram_controller_parameters import SdramControllerParameters
from hw.ports import Ports


class SdramMemory(ServedMemory):
    """Rows in an SDRAM.

    Latency of a read: one cycle more than :class:`SdramController`'s, for the queue of responses,
    if no other request and no refresh comes before it.

    Parameters
    ----------
    description : :class:`BoardMemory`
    sdram : :class:`SdramControllerParameters`
        Its port is the description's.
    """

    def __init__(self, description: BoardMemory, sdram: SdramControllerParameters):
        self._sdram = sdram
        super().__init__(description)

    def ports(self) -> Ports:
        return super().ports() | sdram_pins(self._sdram)

    def store(self, m) -> SdramController:
        m.submodules.controller = controller = SdramController(self._sdram)
        for name in sdram_pins(self._sdram):
            inner, outer = getattr(controller, name), getattr(self, name)
            m.d.comb += inner.eq(outer) if name == "read_data" else outer.eq(inner)
        return controller
