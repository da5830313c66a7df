"""The console's words: the same in both languages, all there, none left over."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import trivet
import trivet_cpu
import trivet_cuda
import trivet_registry
import trivet_supervisor
import trivet_web
from trivet_web.console.texts import LANGUAGES, fill, sentences_of, texts_of, texts_of_page

FOLDER = Path(trivet_web.__file__).parent / "console"
FOLDERS = sorted(path.parent for path in FOLDER.rglob("en.json"))
PLACE = re.compile(r"\{\w+\}")
# Keys in templates and modules; what is put together at run time is named by its beginning.
USED = re.compile(r"""\bt\(\s*['"]([\w.-]+)['"]\s*[,)]|\btn\(\s*['"]([\w.-]+)['"]""")
MADE = re.compile(r"""\b(?:t|tn|textOr)\(\s*[`'"]([\w.-]+\.)(?:\$\{|['"] ~)""")


def words_of(folder: Path, language: str) -> dict[str, str]:
    found: dict[str, str] = json.loads((folder / f"{language}.json").read_text())
    return found


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_both_languages_have_the_same_keys_and_places(folder: Path) -> None:
    english, chinese = words_of(folder, "en"), words_of(folder, "zh-CN")
    assert list(english) == list(chinese)
    for key, text in english.items():
        assert set(PLACE.findall(text)) == set(PLACE.findall(chinese[key])), key
        assert text, key
        assert chinese[key], key


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_keys_begin_with_the_name_of_their_folder(folder: Path) -> None:
    assert all(key.startswith(f"{folder.name}.") for key in words_of(folder, "en"))


@pytest.mark.parametrize(
    "file",
    sorted([*FOLDER.rglob("*.js"), *FOLDER.rglob("*.html")]),
    ids=lambda file: "/".join(file.parts[-3:]),
)
def test_every_key_that_is_asked_for_is_there(file: Path) -> None:
    page = file.parent.name if file.parent.parent.name == "pages" else ""
    known = texts_of("en") if file.suffix == ".html" else texts_of_page("en", page)
    text = file.read_text()
    for plain, plural in USED.findall(text):
        wanted = [plain] if plain else [f"{plural}_one", f"{plural}_other"]
        assert not [key for key in wanted if key not in known], wanted


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_no_key_is_left_over(folder: Path) -> None:
    sources = "\n".join(
        path.read_text() for path in FOLDER.rglob("*") if path.suffix in (".js", ".html", ".py")
    )
    used = {key for pair in USED.findall(sources) for key in pair if key}
    quoted = set(re.findall(r"[`'\"]([\w-]+(?:\.[\w-]+)+)[`'\"]", sources))
    beginnings = tuple(MADE.findall(sources))
    for key in words_of(folder, "en"):
        stem = re.sub(r"_(?:one|other)$", "", key)
        assert stem in used | quoted or key.startswith(beginnings), key


def test_a_text_keeps_a_place_without_a_value() -> None:
    assert fill("{a} of {b}", {"a": 1}) == "1 of {b}"


def test_there_are_english_and_chinese() -> None:
    assert list(LANGUAGES) == ["en", "zh-CN"]


def python_texts(root: Path) -> Iterator[str]:
    """All texts of the sources, with `{}` for what is put into them."""
    for file in root.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)  # type: ignore[misc]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_a_translated_sentence_is_one_that_the_server_says() -> None:
    """One that was changed there would stay English without a word."""
    said = {
        text
        for package in (trivet, trivet_registry, trivet_supervisor, trivet_web, trivet_cpu, trivet_cuda)
        for text in python_texts(Path(package.__file__).parent)
    }
    for english, own in sentences_of("zh-CN").items():
        assert PLACE.sub("{}", english) in said, english
        assert sorted(PLACE.findall(english)) == sorted(PLACE.findall(own)), english
        assert len(set(PLACE.findall(english))) == len(PLACE.findall(english)), english
    assert not sentences_of("en")
