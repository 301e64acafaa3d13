"""The manifest: what a stage made, out of what, by which code. If it exists, all that it names exists.

It is the only file that Snakemake tracks, and the only link between two stages.
"""

import hashlib
import json
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from checkpoints.commit import commit

NAME = "manifest.json"
ATTEMPT = "attempt.json"


class File(BaseModel):
    """A file of the result, by its path relative to the attempt folder."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    path: str
    bytes: int
    sha256: str


class Provenance(BaseModel):
    """What is known of a result before it exists. `slurm` writes it as attempt.json in a new attempt folder."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    stage: str
    attempt: str
    """Name of the attempt folder, beside the published manifest, that holds the files."""
    config: dict[str, Any]
    """The stage's resolved config."""
    config_digest: str
    code_digest: str
    """Digest of the code that the stage can reach, without comments (`slurm.fingerprint.code_digest`)."""
    code_version: str
    """Git commit, with `+dirty` when the tree had changes; empty outside git."""
    inputs: dict[str, str] = Field(default_factory=dict)
    """Digest of each input's manifest, by stage."""

    def write(self, folder: Path) -> None:
        """Commit as `folder`/attempt.json."""
        write_json(folder / ATTEMPT, self.model_dump())


class Manifest(Provenance):
    """The record of one finished stage."""

    environment_hash: str = ""
    tokenizer_digest: str = ""
    weights_digest: str = ""
    versions: dict[str, str] = Field(default_factory=dict)
    """Python, platform and library versions."""
    metrics: dict[str, float | int | str | None] = Field(default_factory=dict)
    files: tuple[File, ...] = ()


def commit_manifest(
    folder: Path,
    paths: list[Path],
    metrics: Mapping[str, float | int | str | None],
    *,
    environment_hash: str = "",
    tokenizer_digest: str = "",
    weights_digest: str = "",
) -> Manifest:
    """A stage's last act, on rank 0: describe the result in `folder`/manifest.json.

    `paths` are the files of the result, all below `folder`; the rest comes from the folder's attempt.json.
    """
    provenance = Provenance.model_validate_json((folder / ATTEMPT).read_bytes())
    manifest = Manifest(
        **provenance.model_dump(),
        environment_hash=environment_hash,
        tokenizer_digest=tokenizer_digest,
        weights_digest=weights_digest,
        versions=library_versions(),
        metrics=dict(metrics),
        files=describe_files(folder, paths),
    )
    write_json(folder / NAME, manifest.model_dump())
    return manifest


def library_versions() -> dict[str, str]:
    """Python, platform and the libraries that can change a result."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in ("torch", "transformers", "tokenizers", "numpy", "pyarrow", "h5py", "datasketch", "math-verify"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Commit a JSON file that a person can read."""
    with commit(path) as aside:
        aside.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")


class Result:
    """A finished stage as the next one sees it: the manifest, its digest, and the folder of its files."""

    def __init__(self, path: Path, look_at_files: bool = True) -> None:
        """Read a published manifest (`runs/<run>/<stage>/manifest.json`) or one in its attempt folder.

        Raises ValueError when it is missing, not a manifest, or names a file that is not there with its size.
        """
        if not path.exists():
            raise ValueError(f"{path}: no such manifest; run the stage that makes it first")
        content = path.read_bytes()
        try:
            self.manifest = Manifest.model_validate_json(content)
        except ValueError as error:
            raise ValueError(
                f"{path}: damaged, or of another version of Qianka; remove it, and the stage runs again"
            ) from error
        self.digest = hashlib.sha256(content).hexdigest()
        beside = path.parent / self.manifest.attempt
        self.folder = beside if beside.is_dir() else path.parent
        for file in self.manifest.files if look_at_files else ():
            found = self.folder / file.path
            if not found.exists() or found.stat().st_size != file.bytes:
                raise ValueError(
                    f"{found}: named by {path} with {file.bytes} bytes, but missing or of another size; put it back, "
                    f"or make the result again with `qianka stage {self.manifest.stage}`"
                )

    def paths(self, prefix: str) -> list[Path]:
        """The result's files whose relative path starts with `prefix`, in order."""
        return [self.folder / file.path for file in self.manifest.files if file.path.startswith(prefix)]


def describe_files(folder: Path, paths: list[Path]) -> tuple[File, ...]:
    """Size and checksum of each path (all below `folder`), sorted by path."""
    entries = [
        File(path=path.relative_to(folder).as_posix(), bytes=path.stat().st_size, sha256=file_digest(path))
        for path in paths
    ]
    return tuple(sorted(entries, key=lambda entry: entry.path))


def file_digest(path: Path) -> str:
    """SHA-256 of a file, streamed."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest(value: Mapping[str, Any] | str) -> str:
    """SHA-256 of a JSON value in canonical form, or of a string."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
