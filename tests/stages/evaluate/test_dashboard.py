import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from plotly.offline import get_plotlyjs

from stages.evaluate.dashboard import render_dashboard

CURVES = {
    "sft": pa.table({"step": [1, 2, 3], "loss": [2.0, 1.0, 0.5], "validation_loss": [None, None, 0.6]}),
    "rl": pa.table({"step": [1, 2], "reward": [0.2, 0.6]}),
}


class Page(HTMLParser):
    """Tags with their attributes, and the text of each script and style."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.blocks: list[tuple[str, str]] = []
        self.text = ""
        self.inside = ""
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = tag if tag in ("script", "style") else ""

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.blocks.append((self.inside, data))
        else:
            self.text += data


@pytest.fixture
def report(evaluated: Path) -> dict[str, Any]:
    return json.loads((evaluated / "report.json").read_text())


def test_the_page_of_an_evaluation_tells_its_numbers_in_words(evaluated: Path, report: dict[str, Any]) -> None:
    text = Page((evaluated / "dashboard.html").read_text()).text
    assert f"{100 * report['policies']['rl']['greedy']['success']:.1f}%" in text
    assert "Reinforcement learning made no measurable difference" in text
    assert report["lineage"]["rl"]["manifest"][:10] in text


def test_what_a_model_wrote_is_escaped_everywhere(report: dict[str, Any]) -> None:
    attack = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    for sample in report["samples"]:
        sample["prompt"] = sample["answer"] = attack
        for shown in sample["policies"].values():
            shown["completion"] = attack
    report["notes"].append(attack)
    report["policies"]["rl"]["greedy"]["by_level"] = {
        attack: report["policies"]["rl"]["greedy"]["by_level"].popitem()[1]
    }
    for policy in ("base", "sft"):
        report["policies"][policy]["greedy"]["by_level"] = report["policies"]["rl"]["greedy"]["by_level"]
    page = Page(render_dashboard(report, CURVES))
    assert sum(tag == "script" for tag, _ in page.tags) == 3 and not any(tag == "img" for tag, _ in page.tags)
    assert page.text.count(attack) > len(report["samples"])


def test_the_page_asks_nothing_of_any_network(report: dict[str, Any]) -> None:
    content = render_dashboard(report, CURVES)
    page = Page(content)
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "object", "embed", "base", "form"), tag
        assert not {"src", "href", "srcset", "action", "background"} & attributes.keys(), (tag, attributes)
    assert "http" not in content.replace(get_plotlyjs(), "").replace("http-equiv", "")  # plotly's own never run here
    assert not re.search(r"@import|url\(", "".join(text for tag, text in page.blocks if tag == "style"))
    policy = next(a["content"] for tag, a in page.tags if tag == "meta" and a.get("http-equiv"))
    assert policy is not None and policy.startswith("default-src 'none';") and "http" not in policy


def test_only_scripts_with_the_nonce_run(report: dict[str, Any]) -> None:
    page = Page(render_dashboard(report, CURVES))
    scripts = [attributes for tag, attributes in page.tags if tag == "script"]
    nonces = {attributes["nonce"] for attributes in scripts if attributes.get("type") != "application/json"}
    policy = next(a["content"] for tag, a in page.tags if tag == "meta" and a.get("http-equiv"))
    assert len(nonces) == 1 and f"script-src 'nonce-{nonces.pop()}'" in str(policy)


def test_the_same_report_gives_the_same_page(report: dict[str, Any]) -> None:
    assert render_dashboard(report, CURVES) == render_dashboard(json.loads(json.dumps(report)), CURVES)


def figures(content: str) -> dict[str, Any]:
    return json.loads(next(text for tag, text in Page(content).blocks if tag == "script" and text.startswith("{")))


def test_charts_have_intervals_and_only_curves_that_were_logged(report: dict[str, Any]) -> None:
    found = figures(render_dashboard(report, CURVES))
    captions = [figure["caption"] for name, figure in found.items() if name.startswith("curve_")]
    assert captions == ["SFT: loss", "RL: mean reward"]
    validation = found["curve_0"]["data"][1]
    assert (validation["x"], validation["y"]) == ([3], [0.6])
    bars = next(t for t in found["suites"]["data"] if t["type"] == "bar" and t["name"] == "RL")
    greedy = report["policies"]["rl"]["greedy"]
    assert bars["y"][0] == greedy["success"]
    assert bars["y"][0] + bars["error_y"]["array"][0] == pytest.approx(greedy["high"])


def test_a_page_without_any_graded_completion_can_still_be_drawn(report: dict[str, Any]) -> None:
    nothing = {"success": None, "low": None, "high": None, "count": 0}
    for policy in report["policies"].values():
        policy["greedy"] |= nothing | {"reward": {"value": None, "low": None, "high": None, "count": 0}}
    for index, found in enumerate(report["comparisons"]):
        report["comparisons"][index] = {key: found[key] for key in ("suite", "before", "after")}
    text = Page(render_dashboard(report, CURVES)).text
    assert "no prompt was graded both before and after it" in text and "no prompt was graded for both" in text
