"""lm-eval's `local-completions`: SmolLM2 served here has the score that transformers gives it in float32.

The task is made of what every child knows: no data set is downloaded.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Server

REFERENCE = Path(__file__).with_name("score_by_transformers.py")
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


NUM_CHOICES = 4
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October"]
OPPOSITES = """hot cold, big small, up down, left right, good bad, old new, day night, fast slow, open closed,
rich poor, full empty, light dark, early late, high low, wet dry, hard soft, love hate, win lose, begin end,
buy sell, black white, north south, east west, young old, strong weak, happy sad, clean dirty, true false"""
CAPITALS = """France Paris, Germany Berlin, Italy Rome, Spain Madrid, Japan Tokyo, China Beijing, Peru Lima,
Russia Moscow, Egypt Cairo, Greece Athens, Austria Vienna, Portugal Lisbon, Ireland Dublin, Norway Oslo,
Poland Warsaw, Sweden Stockholm, Hungary Budapest, Turkey Ankara, Cuba Havana, Kenya Nairobi, Iran Tehran"""

YAML = """task: known
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
target_delimiter: " "
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""


def write_task(folder: Path) -> list[dict[str, Any]]:
    """The task `known` for `--include_path folder`. Returns its documents."""
    documents = [*_in_order("day of the week", DAYS), *_in_order("month", MONTHS), *_numbers()]
    documents += _pairs("The opposite of the word {} is", OPPOSITES)
    documents += _pairs("The capital of {} is", CAPITALS)
    data = folder / "known.jsonl"
    data.write_text("\n".join(map(json.dumps, documents)))
    (folder / "known.yaml").write_text(YAML.format(data=data))
    return documents


def _document(question: str, right: str, others: list[str], number: int) -> dict[str, Any]:
    """The right one is at every place equally often."""
    wrong = [other for other in dict.fromkeys(others) if other != right][: NUM_CHOICES - 1]
    place = number % NUM_CHOICES
    return {"question": question, "choices": [*wrong[:place], right, *wrong[place:]], "answer": place}


def _in_order(kind: str, names: list[str]) -> list[dict[str, Any]]:
    return [
        _document(f"The {kind} that comes after {one} is", after, [*names[place + 2 :], *names], place)
        for place, (one, after) in enumerate(pairwise(names))
    ]


def _numbers() -> list[dict[str, Any]]:
    return [
        _document(f"{n}, {n + s}, {n + 2 * s},", str(n + 3 * s), [str(n + m) for m in (0, 1, 9, 70)], n)
        for s in (1, 2, 5, 10)
        for n in range(1, 19)
    ]


def _pairs(form: str, text: str) -> list[dict[str, Any]]:
    pairs = [pair.split() for pair in text.split(",")]
    values = [value for _, value in pairs]
    return [
        _document(form.format(key), value, values[place + 5 :] + values, place)
        for place, (key, value) in enumerate(pairs)
    ]


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("task")
    return folder, write_task(folder)


def test_score_is_that_of_transformers(server: Server, documents: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, rows = documents
    model = f"model=smol,base_url={server.url}/v1/completions,num_concurrent=4,max_length=2048"
    options = ["--include_path", str(folder), "--output_path", str(folder / "out"), "--log_samples"]
    command = [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--tasks", "known"]
    environment = {**os.environ, **OFFLINE, "HF_HOME": str(folder / "hf")}
    subprocess.run([*command, "--model_args", model, *options], env=environment, check=True, timeout=240)
    (results,) = (folder / "out").rglob("results_*.json")
    (samples,) = (folder / "out").rglob("samples_*.jsonl")
    score = json.loads(results.read_text())["results"]["known"]
    own = {line["doc_id"]: line for line in map(json.loads, samples.read_text().splitlines())}

    data = str(folder / "known.jsonl")
    command = [server.python, str(REFERENCE), server.model_file, data]
    said = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=240)
    wanted: list[list[float]] = json.loads(said.stdout)
    right = [row["answer"] == sums.index(max(sums)) for row, sums in zip(rows, wanted, strict=True)]
    assert 40 < 100 * score["acc,none"] < 95, "a task that tells models apart"
    assert abs(score["acc,none"] - sum(right) / len(rows)) * 100 <= 0.5
    apart = [
        abs(float(given[0]) - sums[place])
        for number, sums in enumerate(wanted)
        for place, (given,) in enumerate(own[number]["resps"])
    ]
    assert sum(apart) / len(apart) < 0.05, "in nats for a choice"
