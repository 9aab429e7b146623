"""Panels of lines and bars as an SVG that a phone and a projector can show, in light and dark.

A picture is one column of panels, 720 units wide: a phone shows it at half size, so no type is smaller than 21
units. Its colours follow `prefers-color-scheme`; it paints its own background, since the page around it may not.
"""
import html
import math

WIDTH = 720
MARGIN = 20
TITLE, TEXT, TICK = 28, 22, 21  # type sizes
LABELS = 150  # room right of the lines for their names, and more where one is long

# Okabe and Ito's colours, some darker for white or lighter for black: (light, dark).
COLOURS = {"glibc": ("#24292f", "#f0f6fc"), "mimalloc": ("#0072b2", "#58b0ee"), "jemalloc": ("#007a59", "#35cf9f"),
           "tcmalloc": ("#a64d82", "#e8a3ca"), "rdmalloc": ("#c85000", "#ff8a42")}
FURTHER = [("#8a6d00", "#e6b800"), ("#2a7f9e", "#7fd0ea"), ("#6e7781", "#9aa4ae")]
MARKERS = ["circle", "square", "triangle", "diamond", "cross"]


def escape(text):
    return html.escape(str(text), quote=True)


def base_of(name):
    """mimalloc-nopurge is mimalloc with a setting: its colour, dashed."""
    return name if name in COLOURS else name.split("-")[0]


class Names:
    """What tells each allocator's line: a class for its colour, a marker, dashes for a variant."""

    def __init__(self, names):
        self.names = list(names)
        bases = list(dict.fromkeys(base_of(name) for name in self.names))
        further = iter(range(len(bases)))
        self.colours = {base: COLOURS.get(base) or FURTHER[next(further) % len(FURTHER)] for base in bases}

    def style(self, name):
        return f"c{list(self.colours).index(base_of(name))}"

    def marker(self, name):
        return MARKERS[list(self.colours).index(base_of(name)) % len(MARKERS)]

    def is_variant(self, name):
        return name != base_of(name)

    def css(self, dark):
        return "".join(f".c{i}{{stroke:{pair[dark]};fill:{pair[dark]}}}" for i, pair in enumerate(self.colours.values()))


def wrap(text, size, width):
    """Lines of about `width` units: a character of a sans face is half its size wide, capitals more."""
    lines, most = [""], int(width / (0.57 * size))
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > most:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return lines


def text_at(x, y, text, size=TICK, anchor="start", style="ink", bold=False):
    weight = ' font-weight="bold"' if bold else ""
    return (f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"{weight}>'
            f"{escape(text)}</text>\n")


def marker_at(shape, x, y, style, size=6):
    points = {"square": [(-1, -1), (1, -1), (1, 1), (-1, 1)], "triangle": [(0, -1.3), (1.2, 1), (-1.2, 1)],
              "diamond": [(0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0)]}.get(shape)
    if points:
        return (f'<polygon class="{style}" points="'
                + " ".join(f"{x + size * px:.1f},{y + size * py:.1f}" for px, py in points) + '"/>\n')
    if shape == "cross":
        return (f'<path class="{style} line" stroke-width="4" d="M{x - size:.1f},{y - size:.1f}l{2 * size},{2 * size}'
                f'm0,{-2 * size}l{-2 * size},{2 * size}"/>\n')
    return f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="{size}"/>\n'


def spread_apart(places, least, low, high):
    """The same order, at least `least` apart and within the bounds where that can be."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    moved = [places[i] for i in order]
    for i in range(len(moved)):
        moved[i] = max(moved[i], low if i == 0 else moved[i - 1] + least)
    for i in reversed(range(len(moved))):
        moved[i] = min(moved[i], high if i == len(moved) - 1 else moved[i + 1] - least)
    return {i: place for i, place in zip(order, moved)}


def number(value):
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def tick_text(value, logarithmic):
    return f"1/{1 / value:.0f}" if logarithmic and value < 1 else number(value)


def ticks_of(low, high, logarithmic):
    """Values between the bounds for the lines across: about five."""
    if logarithmic:
        first, last = math.floor(math.log2(low) + 1e-9), math.ceil(math.log2(high) - 1e-9)
        step = max(1, math.ceil((last - first) / 6))
        return [2.0 ** power for power in range(first, last + 1, step)]
    step = 10 ** math.floor(math.log10(high / 2))
    step *= next(factor for factor in (1, 2, 5, 10) if high / (step * factor) <= 6)
    return [i * step for i in range(math.ceil(high / step - 1e-9) + 1)]


class Panel:
    """A question, a sentence that answers it, and lines or bars."""

    def __init__(self, question, answer, axis, note=""):
        self.question, self.answer, self.axis, self.note = question, answer, axis, note

    def head(self, y):
        text = ""
        for line in wrap(self.question, TITLE * 1.04, WIDTH - 2 * MARGIN):
            y += TITLE * 1.25
            text += text_at(MARGIN, y, line, TITLE, bold=True)
        y += 6
        for line in wrap(self.answer, TEXT, WIDTH - 2 * MARGIN):
            y += TEXT * 1.4
            text += text_at(MARGIN, y, line, TEXT)
        y += 8
        for line in wrap(self.axis, TICK, WIDTH - 2 * MARGIN):
            y += TICK * 1.3
            text += text_at(MARGIN, y, line, TICK, style="soft")
        return text, y + 24

    def foot(self, y):
        text = ""
        y += 10 if self.note else 0
        for line in wrap(self.note, TICK, WIDTH - 2 * MARGIN) if self.note else []:
            y += TICK * 1.3
            text += text_at(MARGIN, y, line, TICK, style="soft")
        return text, y


class Lines(Panel):
    """series: {name: {x: y}}; x is placed by its logarithm. xs: {x: what stands below it}."""
    HEIGHT = 330

    def __init__(self, question, answer, axis, series, xs, logarithmic=False, note="", below=""):
        super().__init__(question, answer, axis, note)
        self.series = {name: points for name, points in series.items() if points}
        self.xs, self.logarithmic, self.below = xs, logarithmic, below
        self.labels = max([LABELS, *(26 + 0.6 * TICK * len(name) for name in self.series)])

    def draw(self, y, names):
        text, top = self.head(y)
        bottom = top + self.HEIGHT
        values = [value for points in self.series.values() for value in points.values()]
        ticks = ticks_of(min(values), max(values), self.logarithmic)
        left = MARGIN + 12 + 0.58 * TICK * max(len(tick_text(tick, self.logarithmic)) for tick in ticks)
        right = WIDTH - MARGIN - self.labels
        scale = math.log if self.logarithmic else float
        low, high = scale(ticks[0]), scale(ticks[-1])

        def place_y(value):
            return bottom - (scale(value) - low) / ((high - low) or 1) * (bottom - top)
        first, last = math.log(min(self.xs)), math.log(max(self.xs))

        def place_x(value):
            return left + 14 + (math.log(value) - first) / ((last - first) or 1) * (right - left - 22)
        for tick in ticks:
            text += (f'<path class="{"one" if tick == 1 and self.logarithmic else "grid"}" '
                     f'd="M{left:.1f},{place_y(tick):.1f}H{right}"/>\n')
            text += text_at(left - 8, place_y(tick) + 7, tick_text(tick, self.logarithmic), anchor="end", style="soft")
        text += self.x_labels(place_x, bottom + TICK * 1.3)
        # Ours last, on top.
        for name in sorted(self.series, key=lambda name: (name == "rdmalloc", not names.is_variant(name))):
            text += self.line(name, names, place_x, place_y)
        text += self.end_labels(names, place_x, place_y, top, bottom)
        y = bottom + TICK * 1.3
        if self.below:
            y += TICK * 1.3
            text += text_at((left + right) / 2, y, self.below, anchor="middle", style="soft")
        foot, y = self.foot(y)
        return text + foot, y

    def x_labels(self, place_x, y):
        """As many as fit beside each other; the last always."""
        text, free = "", float("inf")
        for x, label in sorted(self.xs.items(), reverse=True):
            half = 0.29 * TICK * len(label)
            if place_x(x) + half > free:
                continue
            text += text_at(place_x(x), y, label, anchor="middle", style="soft")
            free = place_x(x) - half - 10
        return text

    def line(self, name, names, place_x, place_y):
        points = sorted(self.series[name].items())
        style, width = names.style(name), 6 if name == "rdmalloc" else 3
        path = "L".join(f"{place_x(x):.1f},{place_y(y):.1f}" for x, y in points)
        dashes = ' stroke-dasharray="9 7"' if names.is_variant(name) else ""
        text = f'<path class="{style} line" stroke-width="{width}"{dashes} d="M{path}"/>\n'
        return text + "".join(marker_at(names.marker(name), place_x(x), place_y(y), style) for x, y in points)

    def end_labels(self, names, place_x, place_y, top, bottom):
        shown = list(self.series)
        ends = {name: max(self.series[name]) for name in shown}
        places = spread_apart([place_y(self.series[name][ends[name]]) for name in shown], TICK * 1.15, top, bottom)
        text = ""
        for i, name in enumerate(shown):
            x, y = place_x(ends[name]), place_y(self.series[name][ends[name]])
            label_x = WIDTH - MARGIN - self.labels + 26
            text += (f'<path class="{names.style(name)} line" stroke-width="1.5" opacity="0.6" '
                     f'd="M{x + 8:.1f},{y:.1f}L{label_x - 5},{places[i]:.1f}"/>\n')
            text += (f'<text class="{names.style(name)} name" x="{label_x}" y="{places[i] + 7:.1f}" font-size="{TICK}"'
                     f'{" font-weight=" + chr(34) + "bold" + chr(34) if name == "rdmalloc" else ""}>{escape(name)}</text>\n')
        return text


class Bars(Panel):
    """groups: {name of the group: {name: value}}; a bar lies, with its value at its end."""
    BAR = 28

    def __init__(self, question, answer, axis, groups, note=""):
        super().__init__(question, answer, axis, note)
        self.groups = {group: bars for group, bars in groups.items() if bars}

    def draw(self, y, names):
        text, y = self.head(y)
        shown = [name for name in names.names if any(name in bars for bars in self.groups.values())]
        left = MARGIN + 14 + 0.58 * TICK * max(len(name) for name in shown)
        most = max(value for bars in self.groups.values() for value in bars.values())
        scale = (WIDTH - MARGIN - 0.6 * TICK * 6 - left) / most
        for group, bars in self.groups.items():
            if len(self.groups) > 1:
                y += TICK * 1.2
                text += text_at(MARGIN, y, group, TICK, bold=True)
                y += 8
            for name in (name for name in shown if name in bars):
                ours = name == "rdmalloc"
                text += text_at(left - 10, y + 20, name, anchor="end", bold=ours)
                opacity = ' opacity="0.55"' if names.is_variant(name) else ""
                text += (f'<rect class="{names.style(name)}"{opacity} x="{left:.1f}" y="{y + 3}" '
                         f'width="{max(bars[name] * scale, 2):.1f}" height="{self.BAR - 6}"/>\n')
                text += text_at(left + bars[name] * scale + 8, y + 20, number(bars[name]), bold=ours)
                y += self.BAR
            y += 6
        foot, y = self.foot(y)
        return text + foot, y


def picture(panels, names, description):
    """The SVG's text."""
    names = Names(names)
    body, y = "", MARGIN * 0.5
    for panel in panels:
        text, y = panel.draw(y, names)
        body += text
        y += MARGIN * 1.6
    ink = [("#1f2328", "#59636e", "#d8dee4", "#ffffff"), ("#f0f6fc", "#aab4bf", "#3d444d", "#0d1117")]

    def colours(dark):
        strong, soft, grid, paper = ink[dark]
        return (f".ink{{fill:{strong}}}.soft{{fill:{soft}}}.grid{{stroke:{grid}}}.one{{stroke:{soft}}}"
                f".paper{{fill:{paper}}}{names.css(dark)}")
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y:.0f}" width="{WIDTH}" height="{y:.0f}" '
            f'font-family="DejaVu Sans, Verdana, Arial, sans-serif" role="img" aria-label="{escape(description)}">\n'
            f"<title>{escape(description)}</title>\n"
            f"<style>{colours(0)}\n@media (prefers-color-scheme: dark){{{colours(1)}}}\n"
            ".line{fill:none;stroke-linejoin:round}.name{stroke:none}rect,polygon,circle{stroke:none}"
            ".grid{stroke-width:1}.one{stroke-width:2}</style>\n"
            f'<rect class="paper" width="{WIDTH}" height="{y:.0f}"/>\n{body}</svg>\n')
