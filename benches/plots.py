"""Pictures of figures."""

from pathlib import Path

import matplotlib as mpl

mpl.use("agg")

from matplotlib import pyplot as plt  # noqa: E402 - after the choice of where to draw
from matplotlib.ticker import FuncFormatter  # noqa: E402

from kvtier.cli.units import show_size  # noqa: E402

BETTER, WORSE = "#2f7f4f", "#b3452c"


def plot_ratios(path: Path, ratios: dict[str, dict[tuple[int, int], float]], title: str) -> None:
    """Draws ratios, by figure and by row size and job size, each as a bar from 1; green is better.

    Args:
        path: The PNG.
        ratios: By the figure's name; more is better where the name ends in "GB/s", less everywhere else.
        title: What is over what.
    """
    names = list(ratios)
    columns = 2
    lines = -(-len(names) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(11, 1.9 * lines), sharex=False, layout="constrained")
    # A column for each way, a line for each figure.
    order = [names[line + column * lines] for line in range(lines) for column in range(columns)]
    for axis, name in zip(axes.flat, order, strict=True):
        labels = [f"{show_size(row_bytes)}\nx {per_job}" for row_bytes, per_job in ratios[name]]
        values = list(ratios[name].values())
        more_is_better = name.endswith("GB/s") and "CPU" not in name
        colours = [BETTER if (value >= 1) == more_is_better or value == 1 else WORSE for value in values]
        bars = axis.bar(labels, [value - 1 for value in values], bottom=1, color=colours)
        axis.bar_label(bars, [f"{value:.2g}" for value in values], fontsize=7, padding=1)
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set_yscale("log")
        low, high = min(1, *values), max(1, *values)
        axis.set_ylim(low / 1.6, high * 1.6)
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.yaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))
        axis.set_title(f"{name}, {'more' if more_is_better else 'less'} is better", fontsize=9)
        axis.tick_params(labelsize=7)
    figure.suptitle(f"{title}: ratios by row size x blocks in a job", fontsize=11)
    figure.savefig(path, dpi=130)
