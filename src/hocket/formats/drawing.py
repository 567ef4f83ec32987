"""What pictures are made of: boxes, lines and texts on a white ground.

SVG is written here, PNG and PDF by matplotlib. Lengths are pixels of 1/96 inch, from the upper left. The same drawing
gives the same bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hocket.errors import MissingPackage, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Point = tuple[float, float]

FORMATS = (".svg", ".png", ".pdf")
"""How the names of pictures end."""

FONT = "DejaVu Sans, Verdana, Arial, sans-serif"

CHARACTER = 0.6
"""Width of a character over its font size, rather too much; that of a line's height is LINE."""
LINE = 1.2

_HEAD = (7.0, 2.6)
"""An arrow's head: its length, and half of its width."""

_INCH, _POINT = 96, 0.75
_MOST_DOTS = 6000


@dataclass(frozen=True, slots=True)
class Box:
    """A filled rectangle; ``round``: the radius of its corners."""

    x: float
    y: float
    wide: float
    tall: float
    fill: str
    edge: str | None = None
    round: float = 0


@dataclass(frozen=True, slots=True)
class Line:
    """From start to end, bent towards ``via`` if that is given; with a head if it is an arrow."""

    start: Point
    end: Point
    colour: str
    width: float = 1
    dash: tuple[float, float] | None = None
    opacity: float = 1
    arrow: bool = False
    via: Point | None = None

    def head(self) -> tuple[Point, Point, Point]:
        """The corners of the arrow's head, the tip first."""
        (x, y), (u, v) = self.end, self.via or self.start
        far = math.hypot(x - u, y - v) or 1.0
        along, across = ((x - u) / far, (y - v) / far), ((v - y) / far, (x - u) / far)
        foot = x - _HEAD[0] * along[0], y - _HEAD[0] * along[1]
        sides = [(foot[0] + s * _HEAD[1] * across[0], foot[1] + s * _HEAD[1] * across[1]) for s in (1, -1)]
        return self.end, sides[0], sides[1]


@dataclass(frozen=True, slots=True)
class Text:
    """One line of text, its middle at height ``y``. ``turned``: it runs upwards."""

    x: float
    y: float
    text: str
    size: float
    colour: str
    anchor: Literal["start", "middle", "end"] = "start"
    bold: bool = False
    italic: bool = False
    turned: bool = False


Shape = Box | Line | Text


@dataclass
class Drawing:
    """Shapes, the later ones above the earlier ones. ``title`` is for who cannot see it."""

    title: str
    wide: float
    tall: float
    shapes: list[Shape] = field(default_factory=list)

    def svg(self) -> str:
        size = f'width="{_n(self.wide)}" height="{_n(self.tall)}" viewBox="0 0 {_n(self.wide)} {_n(self.tall)}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FONT}" role="img">'
        title = f"<title>{escape(printable(self.title))}</title>"
        return "\n".join(
            [head, title, '<rect width="100%" height="100%" fill="white"/>', *map(_svg, self.shapes), "</svg>\n"]
        )

    def save(self, path: Path) -> None:
        """Write it; the name ends in one of FORMATS. Raises MissingPackage, OSError."""
        if path.suffix.lower() == ".svg":
            path.write_text(self.svg(), encoding="utf-8")
        else:
            _save_with_matplotlib(self, path)


# ---------------------------------------------------------------------------------------------------------------
# SVG


def _n(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def _svg(shape: Shape) -> str:
    match shape:
        case Box():
            edge = f' stroke="{shape.edge}"' if shape.edge is not None else ""
            radius = f' rx="{_n(shape.round)}"' if shape.round else ""
            place = f'x="{_n(shape.x)}" y="{_n(shape.y)}" width="{_n(shape.wide)}" height="{_n(shape.tall)}"'
            return f'<rect {place} fill="{shape.fill}"{edge}{radius}/>'
        case Line():
            bend = f"Q{_pair(shape.via)} " if shape.via is not None else "L"
            style = f'stroke="{shape.colour}" stroke-width="{_n(shape.width)}" fill="none"'
            dash = f' stroke-dasharray="{_n(shape.dash[0])} {_n(shape.dash[1])}"' if shape.dash is not None else ""
            faint = f' opacity="{shape.opacity:g}"' if shape.opacity < 1 else ""
            path = f'<path d="M{_pair(shape.start)} {bend}{_pair(shape.end)}" {style}{dash}{faint}/>'
            if not shape.arrow:
                return path
            corners = " ".join(map(_pair, shape.head()))
            return f'{path}\n<polygon points="{corners}" fill="{shape.colour}"{faint}/>'
        case Text():
            style = ' font-weight="bold"' * shape.bold + ' font-style="italic"' * shape.italic
            anchor = "" if shape.anchor == "start" else f' text-anchor="{shape.anchor}"'
            turn = f' transform="rotate(-90 {_n(shape.x)} {_n(shape.y)})"' if shape.turned else ""
            # A third of the size below the middle is the base line.
            place = (
                f'x="{_n(shape.x)}" y="{_n(shape.y)}" dy="0.35em" font-size="{_n(shape.size)}" fill="{shape.colour}"'
            )
            return f"<text {place}{anchor}{style}{turn}>{escape(printable(shape.text))}</text>"


def _pair(point: Point) -> str:
    return f"{_n(point[0])},{_n(point[1])}"


# ---------------------------------------------------------------------------------------------------------------
# PNG and PDF


def _save_with_matplotlib(drawing: Drawing, path: Path) -> None:
    kind = path.suffix[1:].lower()
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPackage(f"a .{kind}, unlike an .svg,", "matplotlib", "plots") from None
    figure = Figure(figsize=(drawing.wide / _INCH, drawing.tall / _INCH), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, drawing.wide)
    axes.set_ylim(drawing.tall, 0)
    for order, shape in enumerate(drawing.shapes):
        _add(axes, shape, order)
    undated = {"CreationDate": None} if kind == "pdf" else {}
    dpi = min(1.5 * _INCH, _MOST_DOTS / max(figure.get_size_inches()))
    figure.savefig(path, format=kind, dpi=dpi, metadata=undated)


def _add(axes: Axes, shape: Shape, order: int) -> None:
    from matplotlib.patches import FancyBboxPatch, PathPatch, Polygon
    from matplotlib.path import Path as Outline

    match shape:
        case Box():
            corners = f"round,pad=0,rounding_size={shape.round}" if shape.round else "square,pad=0"
            place, size = (shape.x, shape.y), (shape.wide, shape.tall)
            edge = shape.edge or "none"
            axes.add_patch(
                FancyBboxPatch(place, *size, boxstyle=corners, fc=shape.fill, ec=edge, lw=_POINT, zorder=order)
            )
        case Line():
            points = [shape.start, *([shape.via] if shape.via is not None else []), shape.end]
            codes = [Outline.MOVETO, *[Outline.LINETO if shape.via is None else Outline.CURVE3] * (len(points) - 1)]
            style = "-" if shape.dash is None else (0, shape.dash)
            line = PathPatch(Outline(points, codes), fill=False, ec=shape.colour, lw=shape.width * _POINT, ls=style)
            line.set(alpha=shape.opacity, zorder=order)
            axes.add_patch(line)
            if shape.arrow:
                axes.add_patch(Polygon(shape.head(), fc=shape.colour, lw=0, alpha=shape.opacity, zorder=order))
        case Text():
            sides = {"start": "left", "middle": "center", "end": "right"}
            axes.text(
                shape.x,
                shape.y,
                printable(shape.text).replace("$", r"\$"),
                size=shape.size * _POINT,
                color=shape.colour,
                ha=sides[shape.anchor],
                va="center" if shape.turned else "center_baseline",
                weight="bold" if shape.bold else "normal",
                style="italic" if shape.italic else "normal",
                rotation=90 if shape.turned else 0,
                zorder=order,
            )
