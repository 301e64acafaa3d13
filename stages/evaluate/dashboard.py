"""report.json as a page: one self-contained HTML file that opens offline and asks nothing of any network."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from checkpoints.manifest import digest
from stages.evaluate import words
from stages.evaluate.figures import TITLES, build_figures, measured
from stages.evaluate.suites import POLICIES
from stages.evaluate.words import NAMES, Report

HERE = Path(__file__).parent
OUTCOMES = ("succeeded", "wrong", "parse_failures", "truncated", "grader_errors")


def render_dashboard(report: Report, metrics: Mapping[str, pa.Table]) -> str:
    """The page for a report and the metrics of the training stages (`data.metrics.read_metrics`, by stage).

    Everything a model or a user wrote is escaped. The page's content security policy also forbids every request, and
    every script but the two that carry the nonce, so that a completion could do nothing even if it were not escaped.
    """
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "percent": words.percent,
        "with_interval": words.with_interval,
        "points": words.points,
        "duration": words.duration,
        "number": words.number,
    }
    return environment.get_template("dashboard.html.jinja").render(
        report=report,
        figures=build_figures(report, metrics),
        plotly=Markup(get_plotlyjs()),
        nonce=digest(dict(report))[:32],
        policies=POLICIES,
        suites=measured(report),
        names=NAMES,
        titles=TITLES,
        verdict=words.verdict,
        evidence=words.evidence,
        comparison=words.comparison,
        outcomes=[_outcomes(report, policy) for policy in POLICIES],
        multi_turn=any(
            not part["policy"] for r in report["rollouts"] for sample in r["samples"] for part in sample["parts"]
        ),
        longest=max((cost["seconds"] or 0 for cost in report["stages"].values()), default=0) or 1,
    )


def _outcomes(report: Report, policy: str) -> dict[str, Any]:
    """How the greedy completions of a policy ended, as counts that add up to all."""
    counts = dict(report["policies"][policy]["greedy"]["completions"])
    others = counts["succeeded"] + counts["parse_failures"] + counts["truncated"] + counts["grader_errors"]
    counts["wrong"] = counts["all"] - others
    return {"policy": policy, "all": counts["all"], "counts": {name: counts[name] for name in OUTCOMES}}
