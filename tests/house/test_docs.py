"""What the documents say of the tree is true: links lead somewhere, and the README's tree is the tree."""

import re
from pathlib import Path

import pytest

from stages.algorithms.load import load_algorithm

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
PACKAGES = ("workflow", "slurm", "stages", "data", "checkpoints")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
ENTRY = re.compile(r"^(?P<indent> *)(?P<name>[\w.-]+/?) {2,}(?P<about>\S.*)$")


def anchors(document: Path) -> set[str]:
    """The names that GitHub gives to a document's headings."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", document.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(document):
    for link in LINK.findall(FENCE.sub("", document.read_text())):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = link.partition("#")
        target = (document.parent / name).resolve() if name else document
        assert target.exists(), f"{document.name}: {link}"
        assert target.is_relative_to(ROOT), f"{document.name}: {link} leaves the repository"
        assert not anchor or anchor in anchors(target), f"{document.name}: {link}"


def test_every_document_can_be_reached_from_the_readme():
    seen, ahead = set(), [ROOT / "README.md"]
    while ahead:
        document = ahead.pop()
        seen.add(document)
        links = LINK.findall(FENCE.sub("", document.read_text()))
        found = {(document.parent / link.partition("#")[0]).resolve() for link in links if not link.startswith("http")}
        ahead += [path for path in found - seen - set(ahead) if path.suffix == ".md"]
    assert set(DOCUMENTS) - seen == set()


def test_algorithms_that_are_shown_whole_can_be_run(tmp_path):
    shown = [fence for document in DOCUMENTS for fence in FENCE.findall(document.read_text())]
    whole = [
        fence.split("\n", 1)[1].removesuffix("```") for fence in shown if fence.startswith("```yaml\ndescription:")
    ]
    assert len(whole) >= 2
    for text in whole:
        (tmp_path / "shown.yaml").write_text(text)
        load_algorithm(str(tmp_path / "shown.yaml"))


def readme_tree() -> dict[str, bool]:
    """Paths of the README's tree (the fenced block that begins with Snakefile), and whether each is a folder."""
    blocks = FENCE.findall((ROOT / "README.md").read_text())
    (block,) = [block for block in blocks if block.splitlines()[1].startswith("Snakefile ")]
    tree: dict[str, bool] = {}
    above: list[tuple[int, str]] = []
    for line in block.splitlines()[1:-1]:
        entry = ENTRY.match(line)
        assert entry, f"not a name, two spaces and what it is: {line!r}"
        depth = len(entry["indent"])
        above = [(indent, name) for indent, name in above if indent < depth]
        path = "".join(name for _, name in above) + entry["name"]
        tree[path.rstrip("/")] = path.endswith("/")
        above.append((depth, entry["name"]))
    return tree


def test_the_readme_tree_names_only_what_exists():
    for path, is_folder in readme_tree().items():
        assert (ROOT / path).is_dir() if is_folder else (ROOT / path).is_file(), path


def test_the_readme_tree_lists_every_file(tracked):
    """A folder that is listed without its contents stands for them, except in the five packages."""
    tree = readme_tree()
    whole = [path for path, is_folder in tree.items() if is_folder and not any(p.startswith(f"{path}/") for p in tree)]
    assert [path for path in whole if path.split("/")[0] in PACKAGES] == []
    missing = [
        name
        for name in tracked
        if name not in tree and Path(name).name != "__init__.py" and not any(name.startswith(f"{p}/") for p in whole)
    ]
    assert missing == []
