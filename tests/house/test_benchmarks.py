import ast
import json

from benchmarks import frame


def test_every_benchmark_has_a_measure_and_says_what_it_measures():
    for name in frame.benchmark_names():
        tree = ast.parse((frame.FOLDER / f"{name}.py").read_text())
        assert ast.get_docstring(tree), name
        assert any(isinstance(node, ast.FunctionDef) and node.name == "measure" for node in tree.body), name


def test_only_replaces_only_that_entry(monkeypatch, tmp_path):
    results = tmp_path / "results.json"
    values = iter([1.0, 2.0, 30.0])

    def measure(name: str) -> frame.Figure:
        return frame.Figure(name=name, value=next(values), unit="tokens/s", baseline=1.0, ratio=1.0)

    monkeypatch.setattr(frame, "benchmark_names", lambda: ["fast", "slow"])
    monkeypatch.setattr(frame, "measure", measure)
    frame.run(results=results)
    frame.run("slow", results=results)
    found = json.loads(results.read_text())
    assert [(entry["name"], entry["value"]) for entry in found] == [("fast", 1.0), ("slow", 30.0)]
    assert list(found[0]) == ["name", "value", "unit", "baseline", "ratio"]
