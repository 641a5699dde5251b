"""The charts, as hand-written SVG: bars for each phase of a dataset, and a row for each target.

The colors are those of Okabe and Ito, which color-blind readers can distinguish. Important facts are also
shown by position, shape or text.
"""

import math
import statistics
from xml.sax.saxutils import escape

from benchlib import tables
from benchlib.systems import ARCHFS

BLUE, SKY, GRAY, VERMILLION, INK, FAINT = "#0072B2", "#56B4E9", "#A9B0B7", "#D55E00", "#222222", "#D9DDE1"
FONT = "font-family='DejaVu Sans, Verdana, sans-serif'"
# A white outline around letters, so that lines behind them stay readable.
HALO = "stroke='white' stroke-width='3' stroke-linejoin='round' paint-order='stroke'"
# The narrowest column of names, and the width of a bold letter in it.
LABELS_MIN, LETTER = 150, 7.8
BARS, VALUES, PANEL_GAP = 230, 80, 30
ROW, HEAD, BOTTOM = 20, 34, 16


class Drawing:
    """Shapes in drawing order, on white."""

    def __init__(self):
        self.shapes = []

    def text(self, x, y, text, size=12, color=INK, anchor="start", weight="normal"):
        self.shapes.append(
            f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size}' fill='{color}' "
            f"text-anchor='{anchor}' font-weight='{weight}' {HALO}>{escape(text)}</text>")

    def box(self, x, y, width, height, color):
        self.shapes.append(f"<rect x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' height='{height:.1f}' "
                           f"fill='{color}'/>")

    def line(self, x1, y1, x2, y2, color=INK, width=1.0, dashes=""):
        self.shapes.append(f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='{color}' "
                           f"stroke-width='{width}' stroke-dasharray='{dashes}'/>")

    def whisker(self, x1, x2, y, half):
        """A line from the minimum to the maximum."""
        if x2 - x1 < 1:
            return
        # Ink over white, so that it is visible on a dark bar.
        for color, width in [("white", 3), (INK, 1)]:
            self.line(x1, y, x2, y, color, width)
            self.line(x1, y - half, x1, y + half, color, width)
            self.line(x2, y - half, x2, y + half, color, width)

    def dot(self, x, y, met):
        if met:
            self.shapes.append(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='5' fill='{BLUE}'/>")
        else:
            corners = f"{x:.1f},{y - 6:.1f} {x + 6:.1f},{y:.1f} {x:.1f},{y + 6:.1f} {x - 6:.1f},{y:.1f}"
            self.shapes.append(f"<polygon points='{corners}' fill='white' stroke='{VERMILLION}' "
                               "stroke-width='2'/>")

    def svg(self, width, height, title):
        head = (f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:.0f} {height:.0f}' "
                f"width='{width:.0f}' height='{height:.0f}' {FONT}>\n<title>{escape(title)}</title>\n"
                f"<rect width='100%' height='100%' fill='white'/>\n")
        return head + "\n".join(self.shapes) + "\n</svg>\n"


# Bars.

def of_dataset(table, dataset, results):
    """A panel for each phase, in two columns."""
    drawing, phases = Drawing(), table.phases(dataset)
    drawing.text(20, 28, dataset, 17, weight="bold")
    rounds = len({row.round for row in table.of(dataset)})
    drawing.text(20, 46, "Medians; whiskers from the least to the most of all rounds" if rounds > 1 else "One round", 11)
    labels = max(LABELS_MIN, LETTER * max(map(len, table.systems(dataset))))
    width = labels + BARS + VALUES
    tops = [60, 60]
    for number, phase in enumerate(phases):
        column = number % 2
        left = 20 + column * (width + PANEL_GAP)
        tops[column] += panel(drawing, table, dataset, phase, results, left, tops[column], labels)
        if column:
            tops = [max(tops)] * 2
    columns = min(2, len(phases))
    return drawing.svg(columns * width + (columns - 1) * PANEL_GAP + 40, max(tops) + 10,
                       f"{dataset}: every phase, every system")


def panel(drawing, table, dataset, phase, results, left, top, labels):
    """Draws one phase at `left` and `top`, with a column of names this wide; returns its height."""
    rows = {system: [tables.value(row) for row in table.of(dataset, system, phase)]
            for system in table.systems(dataset)}
    rows = {system: values for system, values in rows.items() if values}
    needed = needed_value(table, dataset, phase, results)
    scale = BARS / max(max(map(max, rows.values())), needed or 0)
    unit = tables.unit(phase)
    drawing.text(left, top + 16, phase, 13, weight="bold")
    better = "higher" if unit == "MB/s" else "lower"
    drawing.text(left + labels + BARS + VALUES, top + 16, f"{unit}, {better} is better", 11, anchor="end")
    start, end = top + HEAD - 8, top + HEAD + ROW * len(rows)
    zero = left + labels
    for number, (system, values) in enumerate(rows.items()):
        bar(drawing, system, values, zero, top + HEAD + ROW * number, scale)
    drawing.line(zero, start, zero, end, FAINT)
    if needed:
        position = zero + needed * scale
        drawing.line(position, start, position, end, VERMILLION, 1.5, "4 3")
        drawing.text(position, end + 10, f"target of archfs: {tables.short(needed)}", 10, VERMILLION,
                     "middle" if needed * scale > 60 else "start")
    for number, (system, values) in enumerate(rows.items()):
        name_and_figure(drawing, system, values, zero, top + HEAD + ROW * number, scale)
    return HEAD + ROW * len(rows) + BOTTOM + 8


def is_archfs(system):
    """Whether it is archfs, with any options."""
    return system == ARCHFS or system.startswith((f"{ARCHFS} ", f"{ARCHFS},"))


def bar(drawing, system, values, zero, top, scale):
    color = GRAY if not is_archfs(system) else SKY if system.endswith(", tar") else BLUE
    drawing.box(zero, top, max(1, statistics.median(values) * scale), ROW - 6, color)
    drawing.whisker(zero + min(values) * scale, zero + max(values) * scale, top + (ROW - 6) / 2, 3)


def name_and_figure(drawing, system, values, zero, top, scale):
    """Drawn over the target line, while the bars are behind it."""
    weight = "bold" if is_archfs(system) else "normal"
    drawing.text(zero - 8, top + 12, system, 12, anchor="end", weight=weight)
    drawing.text(zero + max(values) * scale + 6, top + 12, tables.short(statistics.median(values)), 11,
                 weight=weight)


def needed_value(table, dataset, phase, results):
    """What archfs must reach in this phase, by the strictest of its targets; None if it has none."""
    own = [tables.value(row) for row in table.of(dataset, ARCHFS, phase)]
    factors = [one.needed / one.ratio() for one in results if (one.dataset, one.phase) == (dataset, phase)]
    if not own or not factors:
        return None
    return statistics.median(own) * (max(factors) if tables.unit(phase) == "MB/s" else 1 / max(factors))


# Targets.

def of_targets(results):
    """A row for each target with the measured ratio; the line at 1 is the target."""
    drawing, label, axis = Drawing(), 470, 380
    width, top = label + axis + 160, 84
    fractions = [value / one.needed for one in results for value in one.ratios]
    least, most = min(0.5, *fractions), max(2, *fractions)

    def x(fraction):
        return label + axis * math.log(fraction / least) / math.log(most / least)

    end = top + ROW * len(results)
    drawing.text(20, 28, "Targets", 17, weight="bold")
    drawing.text(20, 48, "Measured ratio over the needed one: median, least and most of the rounds; "
                 "log scale", 11)
    ticks = [tick for tick in [0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 32] if least <= tick <= most]
    for tick in ticks:
        look = (VERMILLION, 1.5, "4 3") if tick == 1 else (FAINT, 1)
        drawing.line(x(tick), top - 8, x(tick), end, *look)
        drawing.text(x(tick), top - 12, "target" if tick == 1 else f"{tick:g}x", 11,
                     VERMILLION if tick == 1 else INK, "middle")
    for number, one in enumerate(results):
        middle = top + ROW * number + ROW / 2
        drawing.text(label - 14, middle + 4, f"{one.dataset}: {one.phase} / {one.against}", 11, anchor="end")
        drawing.whisker(x(min(one.ratios) / one.needed), x(max(one.ratios) / one.needed), middle, 3)
        drawing.dot(x(one.ratio() / one.needed), middle, one.met())
        drawing.text(width - 20, middle + 4, f"{one.ratio():.2f} of {one.needed:g}", 11,
                     INK if one.met() else VERMILLION, "end", "normal" if one.met() else "bold")
    return drawing.svg(width, end + 20, "Targets, and what was measured")
