"""Operators of the user's own: one decorated function in a file beside the algorithm's."""

from pathlib import Path

import pytest
import torch

from stages.algorithms.kinds import Batch, PolicyOutputs
from stages.algorithms.load import load_algorithm
from stages.algorithms.operator import OPERATORS

HEAD = """
from stages.algorithms.kinds import Batch, PerGroup, PerSample, PerToken, Scalar
from stages.algorithms.operator import operator
"""

SQUARED = """
@operator()
def penalty(of: PerToken, *, weight: float = 1.0) -> PerToken:
    return weight * of * of
"""

ALGORITHM = """
operators: [{files}]
update:
  policy: {{operator: policy_forward}}
  bent: {{operator: penalty, takes: {{of: {of}}}}}
  loss: {{operator: token_mean, takes: {{of: bent}}}}
"""


def write(folder: Path, *sources: str, of: str = "policy.logprobs") -> str:
    folder.mkdir(exist_ok=True)
    names = [f"own{number}.py" for number in range(len(sources))]
    for name, source in zip(names, sources, strict=True):
        (folder / name).write_text(HEAD + source)
    (folder / "mine.yaml").write_text(ALGORITHM.format(files=", ".join(names), of=of))
    return str(folder / "mine.yaml")


def loss(name: str) -> float:
    logprobs = torch.tensor([-1.0, -3.0])
    lengths = torch.tensor([2])
    batch = Batch(lengths, lengths * 0, 1, 2, 1, lambda t: t, lambda _: PolicyOutputs(logprobs, None, None))
    return load_algorithm(name).run_update(batch, {})["loss"].item()


def test_one_decorated_function_is_an_operator(tmp_path: Path) -> None:
    assert loss(write(tmp_path, SQUARED)) == 5.0
    assert "penalty" not in OPERATORS


def test_two_algorithms_may_call_their_operators_alike(tmp_path: Path) -> None:
    one = write(tmp_path / "one", SQUARED)
    other = write(tmp_path / "other", SQUARED.replace("weight * of * of", "-of"))
    assert [loss(one), loss(other), loss(one)] == [5.0, 2.0, 5.0]


def test_a_file_is_read_as_it_is_now_and_nothing_is_written_beside_it(tmp_path: Path) -> None:
    name = write(tmp_path, SQUARED)
    assert loss(name) == 5.0
    write(tmp_path, SQUARED.replace("1.0", "2.0"))  # of the same size, within the same second
    assert loss(name) == 10.0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.yaml", "own0.py"]


def test_an_error_names_the_users_operators_among_those_that_could_give_what_is_missing(tmp_path: Path) -> None:
    give = "\n@operator()\ndef surprise(of: PerToken) -> PerToken:\n    return -of\n"
    with pytest.raises(ValueError, match=r"update\.bent: nothing gives 'nothing'.*operators give it: .*surprise"):
        load_algorithm(write(tmp_path, SQUARED + give, of="nothing"))


MISTAKES = {
    "def penalty(:\n": r"own0\.py:4: (invalid syntax|Function parameters|expected)",
    "import torch_of_another_world\n": r"own0\.py:4: ModuleNotFoundError: .*; import it inside the function",
    "import sys\n\nsys.exit(0)\n": r"own0\.py:6: SystemExit: 0",
    "@operator()\ndef penalty(of: PerToken, *, w: float = 'x') -> PerToken: ...\n": r"penalty\(w\): its default is 'x'",
    "\n\nraise KeyError('x')\n": r"own0\.py:6: KeyError: 'x'",
    "def penalty(of: PerToken) -> PerToken: ...\n": r"own0\.py has no operator; an operator is a function under",
    "@operator\ndef penalty(of: PerToken) -> PerToken: ...\n": r"own0\.py:4: TypeError: operator\(\).*; an operator is",
    "@operator()\ndef penalty(of) -> PerToken: ...\n": r"own0\.py:4: TypeError: operator penalty\(of\): annotate it",
    "@operator()\ndef penalty(of: float) -> PerToken: ...\n": r"penalty\(of\): annotate it PerToken.*, not <class 'flo",
    "@operator()\ndef penalty(of: PerToken): ...\n": r"operator penalty, what it returns: annotate it PerToken",
    "@operator()\ndef penalty(of: PerToken, batch: Batch) -> PerToken: ...\n": r"penalty\(batch\): the batch comes",
    "@operator()\ndef penalty(*of: PerToken) -> PerToken: ...\n": r"penalty\(of\): \* and \*\* say nothing",
    "@operator()\ndef penalty(of: PerToken = 1) -> PerToken: ...\n": r"penalty\(of\): an input has no default",
    "@operator()\ndef penalty(of: PerToken, *, w) -> PerToken: ...\n": r"penalty\(w\): annotate the value",
    "class W: ...\n\n@operator()\ndef penalty(*, w: W) -> PerToken: ...\n": r"penalty\(w\): a value is of a type",
    "@operator()\ndef penalty(of: Tensor) -> PerToken: ...\n": r"own0\.py:5: NameError: name 'Tensor' is not de",
    SQUARED + SQUARED: r"own0\.py:9: TypeError: there is an operator penalty already, in .*own0\.py; give",
    SQUARED.replace(
        "penalty", "gae"
    ): r"own0\.py:5: TypeError: there is an operator gae already, in .*advantages\.py; give",
}


@pytest.mark.parametrize("source", MISTAKES)
def test_a_mistake_in_the_users_file_names_the_file_the_line_and_the_way_out(tmp_path: Path, source: str) -> None:
    with pytest.raises(ValueError, match=rf"mine\.yaml: operators: .*{MISTAKES[source]}"):
        load_algorithm(write(tmp_path, source))


def test_two_files_with_one_name_are_refused_with_both(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"own1\.py:5: TypeError: there is an operator penalty already, in .*own0\.py"):
        load_algorithm(write(tmp_path, SQUARED, SQUARED))


def test_a_file_that_is_not_there_is_named_with_where_it_was_looked_for(tmp_path: Path) -> None:
    name = write(tmp_path, SQUARED)
    (tmp_path / "own0.py").unlink()
    with pytest.raises(ValueError, match=rf"operators: 'own0\.py' is no Python file; .*{tmp_path}/own0\.py"):
        load_algorithm(name)
