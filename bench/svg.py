"""A small picture: panels one above another with time along the bottom."""

from xml.sax.saxutils import escape

WIDTH, PANEL, LEFT, RIGHT, TOP, GAP = 960, 200, 80, 20, 50, 50
GREY, INK = "#d0d0d0", "#333333"


class Picture:
    """`title`, and panels that are added to it; each has a value for every second."""

    def __init__(self, title):
        self.title = title
        self.panels = []

    def panel(self, title, values, colour, lines=()):
        """`lines`: (value, text) drawn across."""
        self.panels.append((title, values, colour, lines))

    def text(self):
        height = TOP + len(self.panels) * (PANEL + GAP) + 10
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="12">',
            f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
            label(LEFT, 22, self.title, size=15),
        ]
        for number, panel in enumerate(self.panels):
            parts += draw(TOP + number * (PANEL + GAP), *panel)
        return "\n".join([*parts, "</svg>", ""])


def draw(top, title, values, colour, lines):
    highest = max([*values, *(value for value, _ in lines)], default=0)
    step = round_step(highest / 4)
    limit = step * max(1, -(-highest // step))
    across = WIDTH - LEFT - RIGHT
    seconds = max(len(values), 1)

    def x(second):
        return LEFT + across * second / seconds

    def y(value):
        return top + PANEL * (1 - value / limit)

    parts = [label(LEFT, top - 8, title)]
    for number in range(round(limit / step) + 1):
        parts += [rule(y(number * step), GREY), label(LEFT - 6, y(number * step) + 4, f"{number * step:,g}", anchor="end")]
    every = round_step(seconds / 8)
    for number in range(int(seconds // every) + 1):
        parts.append(label(x(number * every), top + PANEL + 16, f"{number * every:g} s", anchor="middle"))
    points = " ".join(f"{x(second + 0.5):.1f},{y(value):.1f}" for second, value in enumerate(values))
    parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.2" points="{points}"/>')
    for value, text in lines:
        parts += [rule(y(value), INK, dash=True), label(WIDTH - RIGHT - 4, y(value) - 4, text, anchor="end")]
    return parts


def rule(y, colour, dash=False):
    more = ' stroke-dasharray="5 4"' if dash else ""
    return f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}"{more}/>'


def label(x, y, text, anchor="start", size=12):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{INK}">{escape(text)}</text>'


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
