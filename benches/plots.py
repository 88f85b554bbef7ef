"""Pictures of figures."""

from pathlib import Path

import matplotlib as mpl

mpl.use("agg")

from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter

BETTER, WORSE = "#2f7f4f", "#b3452c"


def plot_ratios(path: Path, ratios: dict[str, dict[str, float]], lines: int, title: str) -> None:
    """Draws ratios, each as a bar from 1; green is better.

    Args:
        path: The PNG.
        ratios: By the figure's name, column by column, and by what stands below the bar; more is better where it is a
            rate, less everywhere else.
        lines: Figures in a column.
        title: What is over what.
    """
    columns = len(ratios) // lines
    figure, axes = plt.subplots(
        lines, columns, figsize=(4.6 * columns, 1.75 * lines), squeeze=False, layout="constrained"
    )
    for number, (name, of_bars) in enumerate(ratios.items()):
        axis = axes[number % lines][number // lines]
        labels, values = list(of_bars), list(of_bars.values())
        more_is_better = "GB/s" in name
        colours = [BETTER if (value >= 1) == more_is_better or value == 1 else WORSE for value in values]
        bars = axis.bar(labels, [value - 1 for value in values], bottom=1, color=colours)
        axis.bar_label(bars, [f"{value:.2g}" for value in values], fontsize=7, padding=1)
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set_yscale("log")
        axis.set_ylim(min(1, *values) / 1.8, max(1, *values) * 1.8)
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.yaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))
        axis.set_title(f"{name}: {'more' if more_is_better else 'less'} is better", fontsize=9)
        axis.tick_params(labelsize=6.5)
    figure.suptitle(f"{title}: ratios, by row size x blocks in a job", fontsize=11)
    figure.savefig(path, dpi=72, pil_kwargs={"optimize": True})
