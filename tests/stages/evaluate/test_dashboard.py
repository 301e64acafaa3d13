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
    for record in report["rollouts"]:
        record["prompt"] = record["id"] = attack * 10
        for sample in record["samples"]:
            sample["terms"] = {attack: 1.0, "other": 0.0}
            sample["parts"] = [{"policy": True, "text": attack}, {"policy": False, "text": attack}]
    report["warnings"] = [{"step": 1, "name": attack, "seen": attack, "advice": attack}]
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
    assert captions == ["SFT: loss", "RL: reward and success"]
    validation = found["curve_0"]["data"][1]
    assert (validation["x"], validation["y"]) == ([3], [0.6])
    bars = next(t for t in found["suites"]["data"] if t["type"] == "bar" and t["name"] == "RL")
    greedy = report["policies"]["rl"]["greedy"]
    assert bars["y"][0] == greedy["success"]
    assert bars["y"][0] + bars["error_y"]["array"][0] == pytest.approx(greedy["high"])


RL = {
    "step": [1, 2, 3],
    "reward": [0.2, 0.4, 0.6],
    "success": [0.2, 0.4, 0.6],
    "completion_length": [9.0, 8.0, 7.0],
    "completion_length_shortest": [2.0, 2.0, 2.0],
    "completion_length_longest": [20.0, 19.0, 18.0],
    "entropy": [0.5, 0.4, None],
    "kl": [0.001, 0.002, None],
    "reward/verifier_mean": [0.2, 0.4, 0.6],
    "reward/brevity_mean": [-0.2, -0.1, 0.0],
}


def test_every_metric_of_a_step_that_a_person_looks_at_has_a_chart(report: dict[str, Any]) -> None:
    found = figures(render_dashboard(report, CURVES | {"rl": pa.table(RL)}))
    charts = {figure["caption"]: figure for name, figure in found.items() if name.startswith("curve_")}
    entropy = charts["RL: entropy and KL"]["data"]
    assert [(line["name"], line["x"], line.get("yaxis")) for line in entropy] == [
        ("entropy", [1, 2], None),
        ("KL within an update", [1, 2], "y2"),
    ]
    low, high, mean = charts["RL: length of completions"]["data"]
    assert (low["y"], high["y"], mean["y"]) == ([2, 2, 2], [20, 19, 18], [9, 8, 7]) and high["fill"] == "tonexty"
    assert [line["name"] for line in charts["RL: terms of the reward"]["data"]] == ["verifier", "brevity"]
    assert "RL: the critic" not in charts


def test_a_long_run_is_drawn_with_fewer_points(report: dict[str, Any]) -> None:
    steps = list(range(1, 25_001))
    long = {"rl": pa.table({"step": steps, "reward": [step / 25_000 for step in steps]})}
    lines = figures(render_dashboard(report, CURVES | long))["curve_1"]["data"]
    assert 900 <= len(lines[0]["x"]) <= 1000


def test_warnings_are_told_with_what_to_try_and_marked_in_the_charts(report: dict[str, Any]) -> None:
    content = render_dashboard(report, CURVES)
    text = " ".join(Page(content).text.split())
    assert "Step 2: entropy collapse Entropy is 0.01. Try another algorithm." in text
    assert [shape["x0"] for shape in figures(content)["curve_1"]["layout"]["shapes"]] == [2]
    quiet = render_dashboard(report | {"warnings": []}, CURVES)
    assert "entropy collapse" not in quiet and figures(quiet)["curve_1"]["layout"]["shapes"] == []


def test_samples_of_rl_are_shown_with_their_rewards_and_special_tokens(report: dict[str, Any]) -> None:
    assert [record["step"] for record in report["rollouts"]] == [1, 2, 3]
    text = " ".join(Page(render_dashboard(report, CURVES)).text.split())
    assert "Step 3 <bos>1+2:2 samples" in text
    assert "best13>1<eos> worst03>0<eos>" in text
    report["rollouts"][0]["samples"][0]["parts"] = [
        {"policy": True, "text": "long " * 100},
        {"policy": False, "text": "the environment's"},
    ]
    content = render_dashboard(report, CURVES)
    assert "(500 characters)" in content and "Shaded lines are the environment's" in content


def test_a_run_without_trajectories_has_no_such_table(report: dict[str, Any]) -> None:
    assert "What RL trained on" not in render_dashboard(report | {"rollouts": []}, CURVES)


def test_a_page_without_any_graded_completion_can_still_be_drawn(report: dict[str, Any]) -> None:
    nothing = {"success": None, "low": None, "high": None, "count": 0}
    for policy in report["policies"].values():
        policy["greedy"] |= nothing | {"reward": {"value": None, "low": None, "high": None, "count": 0}}
    for index, found in enumerate(report["comparisons"]):
        report["comparisons"][index] = {key: found[key] for key in ("suite", "before", "after")}
    text = Page(render_dashboard(report, CURVES)).text
    assert "no prompt was graded both before and after it" in text and "no prompt was graded for both" in text
