"""The dashboard's charts of how a stage learned: its metrics, step by step."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

MAX_POINTS = 1000
"""Steps in a chart; of a longer run every second step is drawn, or every third, and so on."""
SPARSE = 20
"""So few steps have a mark each."""


@dataclass(frozen=True)
class Panel:
    """One chart; a metric that the stage has not logged is left out, and a chart without any."""

    stage: str
    title: str
    left: Mapping[str, str]
    """Metrics on the left axis, each with the name of its line."""
    right: Mapping[str, str] = field(default_factory=dict[str, str])
    """Those on an axis of their own, of another unit."""
    note: str = ""
    band: tuple[str, str] | None = None
    """Metrics between which the area is filled."""


PANELS = (
    Panel("sft", "SFT: loss", {"loss": "training", "validation_loss": "validation"}),
    Panel("rl", "RL: reward and success", {"reward": "reward", "success": "success"}),
    Panel(
        "rl",
        "RL: length of completions",
        {"completion_length": "mean"},
        note="tokens; the band reaches from the shortest to the longest",
        band=("completion_length_shortest", "completion_length_longest"),
    ),
    Panel(
        "rl",
        "RL: groups without signal",
        {"groups_without_signal": "all samples alike"},
        note="share of the prompts whose samples all earned the same",
    ),
    Panel(
        "rl",
        "RL: entropy and KL",
        {"entropy": "entropy", "reference_kl": "KL to the reference"},
        {"kl": "KL within an update"},
        note="nats a token",
    ),
    Panel(
        "rl",
        "RL: importance ratio and clip share",
        {"importance_ratio_max": "largest ratio", "importance_ratio": "mean ratio"},
        {"clip_share": "clip share"},
    ),
    Panel(
        "rl",
        "RL: gradient norm and learning rate",
        {"gradient_norm": "gradient norm"},
        {"learning_rate": "learning rate"},
    ),
    Panel("rl", "RL: the critic", {"explained_variance": "explained variance"}, {"value_loss": "value loss"}),
    Panel(
        "rl",
        "RL: speed",
        {"rollout_tokens_per_second": "rollout", "update_tokens_per_second": "update"},
        note="tokens a second: generated, and learned from",
    ),
    Panel(
        "rl",
        "RL: seconds of a step",
        {"seconds_rollout": "rollout", "seconds_experience": "experience", "seconds_update": "update"},
    ),
)
COLOURS = {"sft": ("var(--sft)", "var(--ink)"), "rl": ("var(--rl)", "var(--sft)", "var(--succeeded)")}
PLAIN = {"tickmode": "auto", "tickformat": "~g"}
"""0.00075 and not 750µ, and round numbers on the right axis as well."""
DASHES = ("solid", "dash", "dot")
"""Of the first, second and third line of a chart: colours are not all that tells them apart."""


TERM = re.compile(r"reward/(?P<name>.+)_mean")
"""Metric of a term of the reward."""


def curves(metrics: Mapping[str, pa.Table], warned: Sequence[int] = ()) -> dict[str, dict[str, Any]]:
    """The charts that the metrics allow, by name. `warned` are steps at which the rl stage warned: a line each."""
    panels = [*PANELS[:2], *_terms(metrics["rl"]), *PANELS[2:]]
    found = {f"curve_{index}": _chart(metrics[panel.stage], panel, warned) for index, panel in enumerate(panels)}
    return {name: chart for name, chart in found.items() if chart is not None}


def _terms(table: pa.Table) -> list[Panel]:
    """The chart of the reward's terms, where there are several."""
    found = {metric: match["name"] for metric in table.column_names if (match := TERM.fullmatch(metric))}
    return (
        [Panel("rl", "RL: terms of the reward", found, note="means, each before its weight")] if len(found) > 1 else []
    )


def _chart(table: pa.Table, panel: Panel, warned: Sequence[int]) -> dict[str, Any] | None:
    left, right = (
        {metric: name for metric, name in lines.items() if metric in table.column_names}
        for lines in (panel.left, panel.right)
    )
    if not left:
        left, right = right, left
    if not left:
        return None
    every = max(1, -(-table.num_rows // MAX_POINTS))
    table = table.take(list(range(0, table.num_rows, every)))
    palette = COLOURS[panel.stage] * (1 + len(left))  # as many as there may be lines
    traces = _band(table, panel.band) if panel.band and set(panel.band) <= set(table.column_names) else []
    for index, (metric, name) in enumerate({**left, **right}.items()):
        line = _line(table, metric, name, index, palette[index])
        traces.append(line if metric in left else line | {"yaxis": "y2"})
    layout: dict[str, Any] = {
        "showlegend": len(left) + len(right) > 1,
        "xaxis": {"title": {"text": "step", "font": {"size": 12}, "standoff": 6}},
        "yaxis": {"rangemode": "tozero", **PLAIN},
    }
    if right:
        axis = {"rangemode": "tozero", "side": "right", "overlaying": "y", "showgrid": False, **PLAIN}
        layout["yaxis2"] = axis | {"tickfont": {"color": palette[len(left)]}}
    if panel.stage == "rl":
        layout["shapes"] = [_mark(step) for step in warned]
    return {"caption": panel.title, "note": panel.note, "data": traces, "layout": layout}


def _line(table: pa.Table, metric: str, name: str, index: int, colour: str) -> dict[str, Any]:
    rows = table.filter(table[metric].is_valid())
    return {
        "type": "scatter",
        "name": name,
        "x": rows["step"].to_pylist(),
        "y": rows[metric].to_pylist(),
        "mode": "lines+markers" if rows.num_rows <= SPARSE else "lines",
        "line": {"color": colour, "width": 2 if index == 0 else 1.5, "dash": DASHES[index % len(DASHES)]},
        "marker": {"size": 6},
        "hovertemplate": "step %{x}: %{y:.4g}<extra>" + name + "</extra>",
    }


def _band(table: pa.Table, metrics: tuple[str, str]) -> list[dict[str, Any]]:
    """The area between two metrics, without lines of its own."""
    edge = {"type": "scatter", "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    below, above = ({**edge, "x": table["step"].to_pylist(), "y": table[metric].to_pylist()} for metric in metrics)
    return [below, {**above, "fill": "tonexty", "fillcolor": "var(--band)"}]


def _mark(step: int) -> dict[str, Any]:
    """A line at a step at which the stage warned."""
    across = {"type": "line", "x0": step, "x1": step, "y0": 0, "y1": 1, "yref": "paper", "layer": "below"}
    return {**across, "line": {"color": "var(--wrong)", "width": 1, "dash": "dot"}}
