import json
import os
import subprocess
import sys

import pytest

from stages.environments import hash as hashing
from stages.environments.arithmetic import Arithmetic
from stages.environments.config import ArithmeticConfig, RowsConfig
from stages.environments.hash import environment_hash

ELSEWHERE = """
from stages.environments.config import ArithmeticConfig
from stages.environments.hash import environment_hash
import sys
print(environment_hash(ArithmeticConfig()), "torch" in sys.modules)
"""


def rows_config(folder, answer="2", **settings) -> RowsConfig:
    folder.mkdir(exist_ok=True)
    (folder / "tasks.jsonl").write_text(json.dumps({"prompt": "1+1?", "answer": answer}) + "\n")
    return RowsConfig(path=str(folder / "tasks.jsonl"), **settings)


@pytest.mark.parametrize("seed", ["1", "2"])
def test_the_hash_is_the_same_in_a_process_with_another_hash_seed_and_needs_no_torch(seed):
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    command = [sys.executable, "-c", ELSEWHERE]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert printed.split() == [environment_hash(ArithmeticConfig()), "False"]


@pytest.mark.parametrize(
    "changed", [{"modulus": 11}, {"operators": (2, 3)}, {"misread_rate": 0.5}, {"space_rate": 0.0}]
)
def test_the_hash_changes_with_each_parameter(changed):
    assert environment_hash(ArithmeticConfig(**changed)) != environment_hash(ArithmeticConfig())


def test_the_hash_changes_with_the_first_observation(monkeypatch):
    before = environment_hash(ArithmeticConfig())
    draw = Arithmetic.draw
    monkeypatch.setattr(Arithmetic, "draw", lambda self, rng, harder: {**draw(self, rng, harder), "prompt": "1+1:"})
    assert environment_hash(ArithmeticConfig()) != before


def test_the_hash_changes_with_the_code_but_not_with_its_comments(monkeypatch):
    before = environment_hash(ArithmeticConfig())
    source = hashing.inspect.getsource
    monkeypatch.setattr(hashing.inspect, "getsource", lambda module: source(module) + "\n# a comment\n")
    assert environment_hash(ArithmeticConfig()) == before
    monkeypatch.setattr(hashing.inspect, "getsource", lambda module: source(module) + "\nANSWER = 42\n")
    assert environment_hash(ArithmeticConfig()) != before


def test_the_hash_changes_with_python_and_with_the_libraries_of_the_grader(tmp_path, monkeypatch):
    exact, math = rows_config(tmp_path / "a"), rows_config(tmp_path / "a", grader="math")
    before = environment_hash(exact), environment_hash(math)
    monkeypatch.setattr(hashing.metadata, "version", lambda name: f"another {name}")
    assert environment_hash(exact) == before[0] and environment_hash(math) != before[1]
    monkeypatch.setattr(hashing.platform, "python_version", lambda: "4.0.0")
    assert environment_hash(exact) != before[0]


def test_a_data_file_counts_by_its_content_and_not_by_its_place(tmp_path):
    one, moved = rows_config(tmp_path / "a"), rows_config(tmp_path / "b")
    assert environment_hash(one) == environment_hash(moved)
    before = environment_hash(one)
    with (tmp_path / "a" / "tasks.jsonl").open("a") as stream:
        stream.write('{"prompt": "2+2?", "answer": "4"}\n')
    assert environment_hash(one) != before


def test_a_missing_data_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"gone.jsonl: no such file"):
        environment_hash(RowsConfig(path=str(tmp_path / "gone.jsonl")))
