"""Write RESULTS.md and growth.svg."""

from collections.abc import Mapping

from tests.benchmarks.growth import Curve, curves
from tests.benchmarks.measure import Cost, Result

WIDTH, HEIGHT, LEFT, BOTTOM = 640, 360, 70, 50
COLOURS = ("#0072b2", "#d55e00", "#009e73")


def page(machine: Mapping[str, object], results: list[Result]) -> str:
    """The table of all results, with the machine they were measured on."""
    lines = ["# Benchmarks", "", "Written by `python -m tests.benchmarks --full --write`.", ""]
    lines += [f"- {name}: {value}" for name, value in machine.items()]
    lines += [
        "",
        "The ratio is ours over the other, per request where the sizes differ; both were measured in the same run.",
        "",
        "| stage | what | rows | ours s | ours CPU s | ours MB | other s | other CPU s | ratio | load |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [_row(result) for result in results if not result.stage.startswith("growth")]
    if found := curves(results):
        lines += ["", "## Growth", "", "![CPU seconds by rows](growth.svg)", ""]
        lines += ["| stage | " + " | ".join(f"{size:,}" for size in found[-1].sizes) + " | exponent |"]
        lines += ["| --- | " + "---: | " * (len(found[-1].sizes) + 1)]
        lines += [
            f"| {curve.stage} | " + " | ".join(f"{cpu:.2f}" for cpu in curve.cpu_seconds) + f" | {_flag(curve)} |"
            for curve in found
        ]
        lines += ["", "CPU seconds of the whole process. The exponent is fitted to what exceeds the smallest size."]
    return "\n".join(lines) + "\n"


def _row(result: Result) -> str:
    cells = [result.stage, result.what, f"{result.size:,}", *_cost(result.ours), _number(result.ours.peak_mb)]
    cells += [*(_cost(result.other) if result.other else ("", "")), _number(result.ratio), f"{result.load}"]
    return "| " + " | ".join(cells) + " |"


def _cost(cost: Cost) -> tuple[str, str]:
    return _number(cost.seconds or None), _number(cost.cpu_seconds)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.4g}"


def _flag(curve: Curve) -> str:
    return f"{curve.exponent}" + (" (more than linear)" if curve.exponent > 1.1 else "")


def plot(found: list[Curve]) -> str:
    """CPU seconds over rows, both axes logarithmic."""
    from math import floor, log10

    top = floor(log10(max(max(curve.cpu_seconds) for curve in found))) + 1

    def x(size: float) -> float:
        return LEFT + (log10(size) - 4) / 3 * (WIDTH - LEFT - 100)

    def y(seconds: float) -> float:
        return (HEIGHT - BOTTOM) - (log10(seconds) + 1) / (top + 1) * (HEIGHT - BOTTOM - 20)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="13" role="img" aria-label="CPU seconds by rows"><rect width="100%" height="100%" fill="#fff"/>'
    ]
    for power in range(4, 8):
        parts.append(f'<path d="M{x(10**power):.0f} 20V{HEIGHT - BOTTOM}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{x(10**power):.0f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{10**power:,}</text>'
        )
    for power in range(-1, top + 1):
        parts.append(f'<path d="M{LEFT} {y(10.0**power):.0f}H{WIDTH - 100}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(10.0**power) + 4:.0f}" text-anchor="end">{10.0**power:g} s</text>')
    for curve, colour in zip(found, COLOURS, strict=False):
        points = [(x(size), y(cpu)) for size, cpu in zip(curve.sizes, curve.cpu_seconds, strict=True)]
        line = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" fill="{colour}"/>' for a, b in points]
        parts.append(
            f'<text x="{points[-1][0] + 8:.1f}" y="{points[-1][1] + 4:.1f}" fill="{colour}">{curve.stage}</text>'
        )
    parts.append(f'<text x="{(LEFT + WIDTH - 100) / 2:.0f}" y="{HEIGHT - 8}" text-anchor="middle">rows</text></svg>')
    return "\n".join(parts) + "\n"
