"""Where and how an engine's RTL first differs from its bit-exact model."""


class Difference(RuntimeError):
    """RTL and bit-exact model disagree, or the RTL stopped; the message is one sentence.

    block
        Catalogue name.
    layer, token
        Layer and token of the language model, from 0.
    """

    def __init__(self, block: str, layer: int, token: int, what: str):
        super().__init__(f"{block}, layer {layer}, token {token}: {what}")
        self.block, self.layer, self.token = block, layer, token
