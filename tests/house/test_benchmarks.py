import ast
import json
from xml.etree import ElementTree

from benchmarks import frame
from benchmarks.drawing import Line, draw


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


def test_every_benchmark_is_in_a_document():
    documents = "".join(path.read_text() for path in frame.DOCUMENT.parent.glob("*.md"))
    assert [name for name in frame.benchmark_names() if f"`{name}`" not in documents] == []


def test_figures_are_written_into_the_table_of_asynchronous_mode_and_nowhere_else(tmp_path):
    results, document = tmp_path / "results.json", tmp_path / "benchmarks.md"
    table = "| `fast` | mine | theirs | how | {} | at least 2 |\n| `slow` | mine | theirs | how | 3 and 1 | 3 |\n"
    text = table.format("as it was") + "\n## Asynchronous mode\n\n" + table + "\n## Others\n\n" + table.format("kept")
    document.write_text(text.format(""))
    figure = frame.Figure(name="fast", value=5717.2, unit="x/s", baseline=2, ratio=2858.6)
    results.write_text(json.dumps([figure.model_dump()]))
    frame.write_down(results, document)
    assert document.read_text() == text.format("5,717 and 2 x/s: **2,858.60**")


def test_each_row_of_the_table_of_asynchronous_mode_gets_its_figure(tmp_path):
    results, document = tmp_path / "results.json", tmp_path / "benchmarks.md"
    figures = [frame.Figure(name=n, value=3, unit="s", baseline=2, ratio=1.5) for n in frame.benchmark_names()]
    results.write_text(json.dumps([figure.model_dump() for figure in figures]))
    document.write_text(frame.DOCUMENT.read_text())
    frame.write_down(results, document)
    section = document.read_text().partition("\n## Asynchronous mode\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert len(rows) >= 10 and all("| 3 and 2 s: **1.50** |" in row for row in rows)


def test_curves_are_drawn_as_lines_from_below_to_above():
    panels = {"seed 1 → 2": [Line("one", [0.0, 0.5, 1.0]), Line("other", [0.25])], "seed 2": [Line("one", [1.0])]}
    picture = ElementTree.fromstring(draw(panels, "success", "samples", 256))
    lines = [line.get("points").split() for line in picture.iter("{http://www.w3.org/2000/svg}polyline")]
    assert [len(line) for line in lines] == [3, 1, 1]
    places = [tuple(map(float, point.split(","))) for point in lines[0]]
    assert places == sorted(places) and [y for _, y in places] == sorted((y for _, y in places), reverse=True)
    assert "768" in ElementTree.tostring(picture, "unicode")
