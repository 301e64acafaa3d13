import pytest

from slurm.devices.builds import vendor_builds


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Puts distributions before those of this environment."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def put(name: str, version: str, plugin: str = "") -> None:
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (folder / "entry_points.txt").write_text(plugin)

    return put


def test_a_plain_torch_on_a_metax_node_was_put_there_by_pip(installed):
    installed("torch", "2.13.0+cpu")
    (finding,) = vendor_builds("metax")
    assert finding.startswith("torch 2.13.0+cpu in ")
    assert "pip put one of the public index in its place" in finding
    assert "pip uninstall torch" in finding


def test_the_vendors_builds_are_left_alone(installed):
    installed("torch", "2.10.0+metax3.8.0.7")
    assert vendor_builds("metax") == []
    installed("vllm", "0.21.0+metax3.8.0.7")
    assert vendor_builds("metax") == []


def test_vllm_of_the_public_index_is_bad_and_one_without_kernels_needs_the_plugin(installed):
    installed("torch", "2.10.0+metax3.8.0.7")
    installed("vllm", "0.21.0")
    (finding,) = vendor_builds("metax")
    assert finding.startswith("vllm 0.21.0 in ")


def test_vllm_without_kernels_is_well_beside_the_vendors_plugin(installed):
    installed("torch", "2.10.0+metax3.8.0.7")
    installed("vllm", "0.21.0+empty")
    assert len(vendor_builds("metax")) == 1
    installed("vllm_metax", "0.21.0", "[vllm.platform_plugins]\nmetax = vllm_metax:register\n")
    assert vendor_builds("metax") == []


@pytest.mark.parametrize("kind", ["cpu", "nvidia", "unknown"])
def test_elsewhere_any_build_is_well(installed, kind):
    installed("torch", "2.13.0+cpu")
    assert vendor_builds(kind) == []
