"""A small picture: panels one above another with time along the bottom."""

import dataclasses
import math
from xml.sax.saxutils import escape

WIDTH, PANEL, LEFT, RIGHT, TOP, GAP = 960, 200, 80, 20, 50, 50
GREY, INK, MARK = "#d0d0d0", "#333333", "#b9a3d6"


@dataclasses.dataclass
class Panel:
    """A curve through `points`, which are (second, value); `lines` are (value, text) and are drawn
    across, `marks` are seconds and are drawn from top to bottom. `log`: each decade is as high as
    the next one; a value below `lowest` is drawn at the bottom."""

    title: str
    points: list
    seconds: float
    colour: str
    lines: tuple = ()
    marks: tuple = ()
    log: bool = False
    lowest: float = 0.1


class Picture:
    """`title`, and panels that are added to it."""

    def __init__(self, title):
        self.title = title
        self.panels = []

    def panel(self, title, values, colour, lines=(), **more):
        """A value for every second, drawn at its middle."""
        points = [(second + 0.5, value) for second, value in enumerate(values)]
        self.panels.append(Panel(title, points, max(len(values), 1), colour, lines, **more))

    def samples(self, title, points, seconds, colour, lines=(), **more):
        """Values of any moments within so many seconds."""
        self.panels.append(Panel(title, points, max(seconds, 1), colour, lines, **more))

    def text(self):
        height = TOP + len(self.panels) * (PANEL + GAP) + 10
        parts = [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
                f'width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="12">'
            ),
            f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
            label(LEFT, 22, self.title, size=15),
        ]
        for number, panel in enumerate(self.panels):
            parts += draw(TOP + number * (PANEL + GAP), panel)
        return "\n".join([*parts, "</svg>", ""])


def draw(top, panel):
    across = WIDTH - LEFT - RIGHT
    heights = [value for _, value in panel.points] + [value for value, _ in panel.lines]
    highest = max(heights, default=0)
    place, ticks = log_scale(panel.lowest, highest) if panel.log else even_scale(highest)

    def x(second):
        return LEFT + across * second / panel.seconds

    def y(value):
        return top + PANEL * (1 - place(value))

    parts = [label(LEFT, top - 8, panel.title)]
    for tick in ticks:
        parts += [rule(y(tick), GREY), label(LEFT - 6, y(tick) + 4, f"{tick:,g}", anchor="end")]
    every = round_step(panel.seconds / 8)
    for number in range(int(panel.seconds // every) + 1):
        parts.append(
            label(x(number * every), top + PANEL + 16, f"{number * every:g} s", anchor="middle")
        )
    parts += [upright(x(second), top) for second in panel.marks]
    points = " ".join(f"{x(second):.1f},{y(value):.1f}" for second, value in panel.points)
    style = f'fill="none" stroke="{panel.colour}" stroke-width="1.2"'
    parts.append(f'<polyline {style} points="{points}"/>')
    for value, text in panel.lines:
        parts += [
            rule(y(value), INK, dash=True),
            label(WIDTH - RIGHT - 4, y(value) - 4, text, anchor="end"),
        ]
    return parts


def even_scale(highest):
    """The place of a value between bottom (0) and top (1), and the values that get a line."""
    step = round_step(highest / 4)
    count = max(1, math.ceil(highest / step))
    return lambda value: value / (step * count), [number * step for number in range(count + 1)]


def log_scale(lowest, highest):
    """The same with whole decades from `lowest` on."""
    decades = max(1, math.ceil(math.log10(max(highest, lowest) / lowest) - 1e-9))
    ticks = [lowest * 10**number for number in range(decades + 1)]
    return lambda value: math.log10(max(value, lowest) / lowest) / decades, ticks


def rule(y, colour, dash=False):
    more = ' stroke-dasharray="5 4"' if dash else ""
    return (
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
        f'stroke="{colour}"{more}/>'
    )


def upright(x, top):
    return f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{top + PANEL}" stroke="{MARK}"/>'


def label(x, y, text, anchor="start", size=12):
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="{INK}">{escape(text)}</text>'
    )


def round_step(about):
    """The next of 1, 2, 5, 10, 20, ... (also below 1)."""
    if about <= 0:
        return 1
    power = 1.0
    while power > about:
        power /= 10
    while power * 10 <= about:
        power *= 10
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= about)
