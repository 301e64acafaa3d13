"""Turns what pydantic found into what the user did: the key, the source it came from, and the valid ones."""

import difflib
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from workflow.layers import Key, Layer

SHOWN = 10
"""Mistakes that one message lists."""


def describe(error: ValidationError, root: type[BaseModel], values: Mapping[str, Any], layers: Sequence[Layer]) -> str:
    """One line for each mistake: source and line, key, what is wrong, what is valid."""
    found = error.errors(include_url=False)
    lines = [_line(detail, root, values, layers) for detail in found[:SHOWN]]
    if len(found) > SHOWN:
        lines.append(f"and {len(found) - SHOWN} more")
    return "\n".join(lines)


def _line(detail: Any, root: type[BaseModel], values: Mapping[str, Any], layers: Sequence[Layer]) -> str:
    key = _key(detail["loc"], values)
    source = next((layer.where(key) for layer in reversed(layers) if layer.has(key)), "config")
    name = ".".join(key)
    if detail["type"] == "extra_forbidden":
        return f"{source}: unknown key `{name}`{_suggest(key, root, values)}"
    if detail["type"] in ("union_tag_invalid", "union_tag_not_found"):
        return f"{source}: `{name}.name` should be one of {detail['ctx'].get('expected_tags') or _kinds(key, root)}"
    if isinstance(detail["input"], Mapping) and detail["type"] == "value_error":
        return f"{source}: `{name}`: {detail['msg'].removeprefix('Value error, ')}"
    if detail["type"] in ("model_type", "model_attributes_type"):
        return f"{source}: `{name}` is {detail['input']!r}, but it is a section: give it `key: value` lines"
    expected = detail["msg"].replace("Input should", "it should").removeprefix("Value error, ")
    return f"{source}: `{name}` is {detail['input']!r}, but {expected}"


def _key(location: Sequence[int | str], values: Mapping[str, Any]) -> Key:
    """The key as the user wrote it: pydantic's location without the tag that tells the kinds of a section apart."""
    key: list[str] = []
    found: Any = values
    for part in location:
        try:
            found = found[part]
        except (KeyError, IndexError, TypeError):
            if part is not location[-1]:
                continue
        key.append(str(part))
    return tuple(key)


def _suggest(key: Key, root: type[BaseModel], values: Mapping[str, Any]) -> str:
    section: type[BaseModel] = root
    found: Any = values
    for part in key[:-1]:
        if isinstance(found, list):  # the section is that of all its entries
            found = found[int(part)]
            continue
        found = found[part]
        annotation = section.model_fields[part].annotation
        inner = section_class(typing.get_args(annotation)[0] if isinstance(found, list) else annotation, found)
        assert inner is not None, f"{key}: an unknown key lies in a section"
        section = inner
    valid = sorted(section.model_fields)
    near = difflib.get_close_matches(key[-1], valid, 2)
    near += [".".join(other) for other in all_keys(root) if other[-1] == key[-1] and other != key]
    meant = f"; did you mean {' or '.join(f'`{name}`' for name in near)}?" if near else "."
    where = f" of `{'.'.join(key[:-1])}`" if len(key) > 1 else ""
    return f"{meant} Valid keys{where}: {', '.join(valid)}"


def _kinds(key: Key, root: type[BaseModel]) -> str:
    assert len(key) == 1, f"{key}: only sections of the root come in several kinds"
    classes = _classes(root.model_fields[key[0]].annotation)
    return ", ".join(repr(kind.model_fields["name"].default) for kind in classes)


def section_class(annotation: Any, value: Any) -> type[BaseModel] | None:
    """The section that an annotation stands for; of several kinds, the one that `value` names."""
    classes = list(_classes(annotation))
    named = value.get("name") if isinstance(value, Mapping) else None
    return next((c for c in classes if "name" in c.model_fields and c.model_fields["name"].default == named), None) or (
        classes[0] if classes else None
    )


def all_keys(section: type[BaseModel], above: Key = ()) -> Iterator[Key]:
    """Every key of the tree that holds a value."""
    for name, field in section.model_fields.items():
        inner = list(_classes(field.annotation))
        for each in inner:
            yield from all_keys(each, (*above, name))
        if not inner:
            yield (*above, name)


def _classes(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif typing.get_origin(annotation) is not None and typing.get_origin(annotation) not in (dict, tuple, list):
        for part in typing.get_args(annotation):
            yield from _classes(part)
