import time
from pathlib import Path
from tempfile import TemporaryDirectory

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.trajectories import Trajectories, read_trajectories, write_trajectories

SHAPES = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 7)), max_size=6)


def make(shapes: list[tuple[int, int]], seed: int = 0) -> Trajectories:
    random = np.random.default_rng(seed)
    prompts = np.array([prompt for prompt, _ in shapes], np.int32)
    lengths = np.array([sum(shape) for shape in shapes], np.int64)
    total, count = int(lengths.sum()), len(shapes)
    parts = [np.arange(length) >= prompt for length, prompt in zip(lengths, prompts, strict=True)]
    mask = np.concatenate([np.zeros(0, bool), *parts])
    return Trajectories(
        tokens=random.integers(0, 1000, total, np.int32),
        mask=mask,
        logprobs=np.where(mask, -random.random(total), 0).astype(np.float32),
        versions=np.where(mask, 7, -1).astype(np.int32),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        prompt_lengths=prompts,
        limits=np.full(count, 9, np.int32),
        terms=random.random((count, 2), np.float32),
        rewards=random.random(count).astype(np.float32),
        finished=random.random(count) < 0.5,
        graded=random.random(count) < 0.9,
        groups=np.arange(count, dtype=np.int32) // 2,
        seeds=random.integers(0, 2**62, count),
        prompt_ids=tuple(f"row-{index // 2}" for index in range(count)),
    )


def equal(left: Trajectories, right: Trajectories) -> bool:
    names = Trajectories.__dataclass_fields__
    return all(np.array_equal(getattr(left, name), getattr(right, name)) for name in names)


@settings(max_examples=40, deadline=None)
@given(SHAPES, st.integers(0, 2**16))
def test_what_is_written_is_read_back(shapes: list[tuple[int, int]], seed: int) -> None:
    written = make(shapes, seed)
    with TemporaryDirectory() as folder:
        write_trajectories(Path(folder) / "a.h5", written, {"step": 3, "environment_hash": "abc", "share": 0.5})
        found, attributes = read_trajectories(Path(folder) / "a.h5")
    assert equal(written, found)
    assert attributes == {"step": 3, "environment_hash": "abc", "share": 0.5}
    for name in Trajectories.__dataclass_fields__:
        if name != "prompt_ids":
            assert getattr(found, name).dtype == getattr(written, name).dtype


def test_a_sequence_is_its_prompt_and_its_completion() -> None:
    trajectories = make([(2, 3), (1, 0), (3, 1)])
    tokens, chosen = trajectories.sequence(2)
    prompt, completion = tokens[~chosen], tokens[chosen]
    assert [*prompt, *completion] == list(trajectories.tokens[6:10])
    assert trajectories.completion_lengths.tolist() == [3, 0, 1]


def test_equal_content_has_equal_bytes_at_any_time(tmp_path: Path) -> None:
    write_trajectories(tmp_path / "a.h5", make([(2, 30)] * 40), {"step": 1})
    time.sleep(1.1)
    write_trajectories(tmp_path / "b.h5", make([(2, 30)] * 40), {"step": 1})
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


def test_h5py_alone_reads_the_file_and_it_is_compressed(tmp_path: Path) -> None:
    write_trajectories(tmp_path / "a.h5", make([(2, 30)] * 40), {"step": 1})
    with h5py.File(tmp_path / "a.h5") as file:
        start, end = file["offsets"][3:5]
        assert len(file["tokens"][start:end]) == 32
        assert file["tokens"].compression == "gzip"
        assert file["prompt_ids"][0] == b"row-0"
        assert file.attrs["step"] == 1


def test_a_file_that_is_cut_or_foreign_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    write_trajectories(path, make([(2, 30)] * 40), {"step": 1})
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(ValueError, match="a.h5"):
        read_trajectories(path)
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["tokens"] = [1, 2]
    with pytest.raises(ValueError, match=r"b\.h5: not a trajectory file"):
        read_trajectories(tmp_path / "b.h5")


def test_columns_of_different_lengths_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    write_trajectories(path, make([(2, 3), (2, 3)]), {})
    with h5py.File(path, "a") as file:
        del file["rewards"]
        file["rewards"] = np.zeros(3, np.float32)
    with pytest.raises(ValueError, match="entries"):
        read_trajectories(path)
