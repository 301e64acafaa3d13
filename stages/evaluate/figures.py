"""The dashboard's charts, as plotly figures in plotly's own JSON form.

Colours are written `var(--name)`: the page puts in those of its light or dark scheme (`dashboard.js`).
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from stages.evaluate.curves import curves
from stages.evaluate.suites import ACTION_NOISE, GENERALISATION, GREEDY, POLICIES, ROBUSTNESS, SAMPLED, SUITES
from stages.evaluate.words import SHORT, Report

Figure = dict[str, Any]
SHARE_AXIS: dict[str, Any] = {"range": [0, 1.1], "tickformat": ".0%", "dtick": 0.25}
GROUPED = {"barmode": "group", "scattermode": "group"}
TITLES = {
    GREEDY: "Greedy",
    SAMPLED: "Sampled",
    GENERALISATION: "Generalisation",
    ROBUSTNESS: "Robustness",
}
LABEL_SIZE = 11


def measured(report: Report) -> list[str]:
    """The suites that the environment can have."""
    return [suite for suite in SUITES if report["policies"]["rl"][suite] is not None]


def build_figures(report: Report, metrics: Mapping[str, pa.Table]) -> dict[str, Figure]:
    """All charts that the numbers allow, by name. `metrics` are those of the training stages."""
    figures = {
        "suites": _suites(report),
        "levels": _levels(report),
        "kinds": _kinds(report),
        "pass_at": _pass_at(report),
        "tokens": _tokens(report),
        **curves(metrics, [warned["step"] for warned in report["warnings"]]),
    }
    return {name: figure for name, figure in figures.items() if figure is not None}


def _suites(report: Report) -> Figure:
    names = measured(report)
    labels = [TITLES[name] for name in names]
    groups = {policy: [report["policies"][policy][name] for name in names] for policy in POLICIES}
    return {"data": _bars(labels, groups), "layout": {**GROUPED, "yaxis": SHARE_AXIS}}


def _tokens(report: Report) -> Figure:
    names = measured(report)
    labels = [TITLES[name] for name in names]
    groups = {policy: [report["policies"][policy][name]["tokens"] for name in names] for policy in POLICIES}
    data = _bars(labels, groups, unit=".1f", label=".0f")
    return {"data": data, "layout": {**GROUPED, "yaxis": {"rangemode": "tozero"}}}


def _levels(report: Report) -> Figure | None:
    trained = list(report["policies"]["rl"][GREEDY]["by_level"])
    generalisation = report["policies"]["rl"][GENERALISATION]
    harder = list(generalisation["by_level"]) if generalisation else []
    if len(trained) + len(harder) < 2:
        return None
    labels = [*trained, *(f"{level} " for level in harder)]  # the space keeps a level apart that occurs in both
    traces: list[dict[str, Any]] = []
    for policy in POLICIES:
        suites = report["policies"][policy]
        records = [suites[GREEDY]["by_level"][level] for level in trained]
        records += [suites[GENERALISATION]["by_level"][level] for level in harder]
        traces.append(_line(policy, labels, records))
    layout: dict[str, Any] = {"xaxis": {"type": "category", **_axis("level of the task")}}
    if harder:
        edges = {"x0": len(trained) - 0.5, "x1": len(labels) - 0.5, "y0": 0, "y1": 1, "yref": "paper"}
        band = {"type": "rect", "layer": "below", "line": {"width": 0}, "fillcolor": "var(--band)"}
        text = {"text": "never trained on", "textposition": "top center", "padding": 6, "font": {"size": LABEL_SIZE}}
        layout["shapes"] = [{**band, **edges, "label": text}]
    return {"data": traces, "layout": {**layout, "yaxis": SHARE_AXIS}}


def _kinds(report: Report) -> Figure | None:
    robustness = report["policies"]["rl"][ROBUSTNESS]
    if robustness is None:
        return None
    kinds = sorted(robustness["by_kind"], key=lambda kind: (kind == ACTION_NOISE, kind))
    labels = ["as it was", *(kind.replace("_", " ") for kind in kinds)]
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for policy in POLICIES:
        found = report["policies"][policy][ROBUSTNESS]
        groups[policy] = [found["unperturbed"], *(found["by_kind"][kind] for kind in kinds)]
    return {"data": _bars(labels, groups), "layout": {**GROUPED, "yaxis": SHARE_AXIS}}


def _pass_at(report: Report) -> Figure:
    traces: list[dict[str, Any]] = []
    for policy in POLICIES:
        found = report["policies"][policy][SAMPLED]["pass_at"]
        traces.append(_line(policy, list(found), list(found.values())))
    layout = {"xaxis": {"type": "category", **_axis("k")}, "yaxis": SHARE_AXIS}
    return {"data": traces, "layout": layout}


def _bars(
    labels: list[str], groups: Mapping[str, list[Mapping[str, Any]]], unit: str = ".1%", label: str = ".0%"
) -> list[dict[str, Any]]:
    """Bars side by side for each policy, each with its height written above its interval."""
    traces: list[dict[str, Any]] = []
    for policy, records in groups.items():
        bars = {"type": "bar", "offsetgroup": policy, **_marks(policy, labels, records, unit)}
        heights = {
            "type": "scatter",
            "mode": "text",
            "offsetgroup": policy,
            "x": labels,
            "y": [record["high"] for record in records],
            "text": ["" if height is None else format(height, label) for height in bars["y"]],
            "textposition": "top center",
            "textfont": {"size": LABEL_SIZE, "color": "var(--ink)"},
            "cliponaxis": False,
            "hoverinfo": "skip",
            "showlegend": False,
        }
        traces += [bars, heights]
    return traces


def _line(policy: str, labels: list[str], records: list[Mapping[str, Any]]) -> dict[str, Any]:
    symbol = {"base": "diamond", "sft": "square", "rl": "circle"}[policy]
    marks = _marks(policy, labels, records)
    marks["marker"] |= {"size": 9, "symbol": symbol}
    return {"type": "scatter", "mode": "lines+markers", **marks, "line": {"color": f"var(--{policy})", "width": 2.5}}


def _axis(title: str) -> dict[str, Any]:
    return {"title": {"text": title, "font": {"size": 12}, "standoff": 6}}


def _marks(policy: str, labels: list[str], records: list[Mapping[str, Any]], unit: str = ".1%") -> dict[str, Any]:
    """Points with their intervals. A record has `success` or `value`; null where nothing was graded."""
    heights = [record["success"] if "success" in record else record["value"] for record in records]
    pairs = [(height, record) for height, record in zip(heights, records, strict=True)]
    return {
        "name": SHORT[policy],
        "x": labels,
        "y": heights,
        "customdata": [[record["low"], record["high"], record["count"]] for record in records],
        "hovertemplate": f"%{{y:{unit}}} (%{{customdata[0]:{unit}}} to %{{customdata[1]:{unit}}}), "
        "%{customdata[2]} prompts",
        "marker": {"color": f"var(--{policy})"},
        "error_y": {
            "array": [None if height is None else record["high"] - height for height, record in pairs],
            "arrayminus": [None if height is None else height - record["low"] for height, record in pairs],
            "symmetric": False,
            "color": "var(--ink)",
            "thickness": 1.2,
            "width": 4,
        },
    }
