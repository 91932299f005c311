"""Tile diagrams as SVG: boxes of a paper's blocks, arrows between them."""

import dataclasses
from collections.abc import Callable

from markupsafe import Markup

OUTSIDE = "outside"
UNIT_X, UNIT_Y = 11, 12
"""Pixels of a column and of a row of the grid."""


@dataclasses.dataclass(frozen=True)
class Box:
    """A box of the diagram, its corner and size on a grid of 34 columns.

    label
        In the paper's words; lines are separated by ``|``.
    link
        Page of the checkout that describes the block as built; empty if it is not built here, or
        OUTSIDE of the chip.
    built
        Files in the paper's folder of ``hw``, or in ``hw/attention``, that are this box.
    """

    name: str
    label: str
    x: float
    y: float
    w: float
    h: float
    link: str = ""
    built: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Diagram:
    """Boxes, and arrows ``(from, to)`` by their names.

    says
        The diagram in one sentence.
    """

    says: str
    boxes: tuple[Box, ...]
    arrows: tuple[tuple[str, str], ...]


def drawn(diagram: Diagram, link: Callable[[str], str]) -> Markup:
    """The diagram as an SVG element; its colours are the page's."""
    boxes = {box.name: box for box in diagram.boxes}
    width = max(box.x + box.w for box in diagram.boxes) * UNIT_X + 2
    height = max(box.y + box.h for box in diagram.boxes) * UNIT_Y + 2
    parts = [
        Markup(
            '<svg class="tile" viewBox="-1 -1 {} {}" style="max-width:{}px" role="img"'
            ' aria-label="{}"><defs><marker id="tip" viewBox="0 0 6 6" refX="5" refY="3"'
            ' markerWidth="6" markerHeight="6" orient="auto"><path d="M0 0L6 3L0 6z"/></marker>'
            "</defs>"
        ).format(width, height, width * 1.5, diagram.says)
    ]
    for start, end in diagram.arrows:
        path = " ".join(f"{x:g},{y:g}" for x, y in route(boxes[start], boxes[end]))
        parts.append(Markup('<polyline points="{}"/>').format(path))
    for box in diagram.boxes:
        parts.append(_box(box, link))
    return Markup("").join([*parts, Markup("</svg>")])


def _box(box: Box, link: Callable[[str], str]) -> Markup:
    x, y, w, h = box.x * UNIT_X, box.y * UNIT_Y, box.w * UNIT_X, box.h * UNIT_Y
    lines = box.label.split("|")
    text = Markup("").join(
        Markup('<text x="{:g}" y="{:g}">{}</text>').format(
            x + w / 2, y + h / 2 + 3.5 + 11 * (i - (len(lines) - 1) / 2), line
        )
        for i, line in enumerate(lines)
    )
    shape = Markup('<rect x="{:g}" y="{:g}" width="{:g}" height="{:g}" rx="3"/>').format(x, y, w, h)
    if box.link in ("", OUTSIDE):
        return Markup('<g class="{}">{}{}</g>').format(box.link or "todo", shape, text)
    return Markup('<a class="built" href="{}">{}{}</a>').format(link(box.link), shape, text)


def route(start: Box, end: Box) -> list[tuple[float, float]]:
    """From border to border: straight where the boxes overlap in x or y, else with one corner."""
    left, right = max(start.x, end.x), min(start.x + start.w, end.x + end.w)
    top, bottom = max(start.y, end.y), min(start.y + start.h, end.y + end.h)
    down, after = end.y >= start.y + start.h, end.x >= start.x + start.w
    if left < right:
        x = (left + right) / 2
        points = [(x, start.y + start.h if down else start.y)]
        points.append((x, end.y if down else end.y + end.h))
    elif top < bottom:
        y = (top + bottom) / 2
        points = [(start.x + start.w if after else start.x, y)]
        points.append((end.x if after else end.x + end.w, y))
    else:
        x, y = end.x + end.w / 2, start.y + start.h / 2
        points = [(start.x + start.w if after else start.x, y), (x, y)]
        points.append((x, end.y if down else end.y + end.h))
    return [(x * UNIT_X, y * UNIT_Y) for x, y in points]
