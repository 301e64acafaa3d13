"""Are torch and vllm those of the cards' vendor? pip replaces them without a word, and then no card is found."""

from importlib.metadata import Distribution, PackageNotFoundError, distribution, entry_points

from slurm.devices.device import Kind


def vendor_builds(kind: Kind) -> list[str]:
    """What is wrong with the installed torch and vllm on a node of this kind, each with the way out; mostly nothing.

    Only MetaX has builds of its own. vllm may also be the one without kernels (`+empty`) when MetaX's plugin is there.
    """
    if kind != "metax":
        return []
    torch, vllm = _installed("torch"), _installed("vllm")
    findings: list[str] = []
    if torch is None:
        findings.append(
            "torch is not installed here: make the environment with `python3 -m venv --system-site-packages`, so that "
            "it sees MetaX's build, or install the wheel of the MACA software stack; never one of the public index"
        )
    elif "metax" not in torch.version:
        findings.append(f"torch {torch.version}{_way_out(torch)}")
    if vllm is not None and not _is_vendors_vllm(vllm):
        findings.append(f"vllm {vllm.version}{_way_out(vllm)}")
    return findings


def _is_vendors_vllm(vllm: Distribution) -> bool:
    plugins = entry_points(group="vllm.platform_plugins").names
    return "metax" in vllm.version or ("empty" in vllm.version and "metax" in plugins)


def _way_out(found: Distribution) -> str:
    name = found.name
    return (
        f" in {found.locate_file('')} is not MetaX's build (which has `metax` in its version): pip put one of the "
        f"public index in its place. Get the vendor's back: `python -m pip uninstall {name}` shows one that lies below "
        "this environment again; else `python -m pip install --no-index --no-deps WHEEL` with the wheel of the MACA "
        "software stack. Never install Qianka's extras `cpu` or `dev` here"
    )


def _installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None
