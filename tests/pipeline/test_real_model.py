import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "SmolLM2-135M-Instruct"
    subprocess.run([sys.executable, REPOSITORY / "tests/pipeline/smollm2.py", folder], check=True)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hugging_face_model_and_the_users_questions_go_through_all_four_stages(smollm2: Path, tmp_path: Path) -> None:
    questions = (REPOSITORY / "workflow/configs/questions.jsonl").read_text().splitlines()
    mine = tmp_path / "mine.jsonl"
    mine.write_text("\n".join(questions[:120]) + "\n")
    command = [sys.executable, "-P", "-m", "workflow.cli", "run", REPOSITORY / "workflow/configs/smollm2.yaml"]
    own = [f"model.folder={smollm2}", f"environment.path={mine}", "slurm.executor=local"]
    subprocess.run([*command, *own], cwd=tmp_path, check=True)

    report = json.loads((tmp_path / "runs/smollm2/report.json").read_text())
    for policy in ("base", "sft", "rl"):
        assert report["policies"][policy]["greedy"]["count"] == 12
        assert report["policies"][policy]["generalisation"] is None  # the user gave no harder questions
    assert (tmp_path / "runs/smollm2/dashboard.html").exists()
    _plain_transformers_generates_with(_model_of(tmp_path / "runs/smollm2/rl"))


def _model_of(stage: Path) -> Path:
    attempt = json.loads((stage / "manifest.json").read_text())["attempt"]
    return stage / attempt / "model"


def _plain_transformers_generates_with(folder: Path) -> None:
    program = (
        "import sys; from transformers import AutoModelForCausalLM, AutoTokenizer;"
        "t = AutoTokenizer.from_pretrained(sys.argv[1]); m = AutoModelForCausalLM.from_pretrained(sys.argv[1]);"
        "x = t.apply_chat_template([{'role': 'user', 'content': 'What is the capital of France?'}],"
        " add_generation_prompt=True, return_tensors='pt', return_dict=True);"
        "print(t.decode(m.generate(**x, do_sample=False, max_new_tokens=12)[0]))"
    )
    # In another folder, so that nothing of Qianka is importable.
    done = subprocess.run(
        [sys.executable, "-c", program, folder], cwd=folder, check=True, capture_output=True, text=True
    )
    assert "Paris" in done.stdout
