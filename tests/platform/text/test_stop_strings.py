from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trivet.text.stop_strings import StopStrings


def run(pieces: list[str], stops: list[str], include: bool = False) -> tuple[list[str], str | None]:
    """What each piece lets out, with the rest at the end, as a server would send it."""
    search = StopStrings(stops, include)
    out = []
    for piece in pieces:
        text, stop = search.push(piece)
        out.append(text)
        if stop is not None:
            return out, stop
    out.append(search.finish())
    return out, None


def one_shot(text: str, stops: list[str], include: bool = False) -> tuple[str, str | None]:
    """The definition by brute force: the first end where one is complete, the longest of those."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


def test_stop_inside_a_longer_token_cuts_before_it() -> None:
    assert run(["ABC", "DEF", "GHI"], ["DE"]) == (["ABC", ""], "DE")


def test_undecided_text_waits_and_comes_out_whole_when_it_is_no_stop() -> None:
    pieces, stop = run(list("ABCDEFGHX"), ["DEFGHIJ"])
    assert pieces == ["A", "B", "C", "", "", "", "", "", "DEFGHX", ""]
    assert stop is None


def test_stop_string_over_several_pieces_never_leaks() -> None:
    assert run(["answer", "\n", "Obs", "ervation", ": x"], ["\nObservation"]) == (
        ["answer", "", "", ""],
        "\nObservation",
    )


@pytest.mark.parametrize("stops", [["never"], [""], []])
def test_text_without_a_stop_string_is_unchanged(stops: list[str]) -> None:
    pieces, stop = run(["some ", "ne", "ve", " text ne"], stops)
    assert ("".join(pieces), stop) == ("some neve text ne", None)


def test_stop_string_is_kept_where_asked_for_and_what_follows_is_not() -> None:
    assert run(["ab", "cd", "ef"], ["bc"], include=True) == (["a", "bc"], "bc")


def test_the_stop_string_that_is_complete_first_wins_even_inside_a_longer_one() -> None:
    assert run(["xabcdef"], ["abcdef", "cd"]) == (["xab"], "cd")


def test_of_two_that_end_together_the_longer_one_wins() -> None:
    assert run(["xabcd"], ["cd", "abcd"]) == (["x"], "abcd")


def test_a_stop_string_inside_the_failed_start_of_another_is_found() -> None:
    assert run(list("abcabd"), ["abcabx", "cab"]) == (["", "", "", "", "ab"], "cab")


def test_a_stop_string_that_starts_anew_inside_its_own_failed_start_is_found() -> None:
    pieces, stop = run(list("aabaaabaaac"), ["aabaaac"])
    assert ("".join(pieces), stop) == ("aaba", "aabaaac")


def test_nothing_comes_out_after_a_match() -> None:
    search = StopStrings(["b"])
    assert search.push("abc") == ("a", "b")
    assert search.push("more") == ("", "b")
    assert search.finish() == ""


def test_finish_gives_back_what_waited_once() -> None:
    search = StopStrings(["stop"])
    assert search.push("xsto") == ("x", None)
    assert [search.finish(), search.finish()] == ["sto", ""]


@given(
    pieces=st.lists(st.text(alphabet="aab\n你🙂", max_size=6), max_size=12),
    stops=st.lists(st.text(alphabet="aab\n你🙂", max_size=5), max_size=4),
    include=st.booleans(),
)
@example(pieces=["aa", "ab"], stops=["aab", "ab"], include=False)
def test_any_cut_of_a_text_gives_what_the_whole_text_gives(
    pieces: list[str], stops: list[str], include: bool
) -> None:
    out, stop = run(pieces, stops, include)
    assert ("".join(out), stop) == one_shot("".join(pieces), stops, include)


@given(
    text=st.text(alphabet="ab", max_size=30),
    stops=st.lists(st.text(alphabet="ab", min_size=1, max_size=5), min_size=1, max_size=3),
)
def test_no_more_is_held_back_than_the_longest_possible_start_of_a_stop_string(
    text: str, stops: list[str]
) -> None:
    search = StopStrings(stops)
    seen = sent = ""
    for character in text:
        piece, stop = search.push(character)
        if stop is not None:
            return
        seen, sent = seen + character, sent + piece
        starts = {stop[:length] for stop in stops for length in range(1, len(stop))}
        longest = max((len(start) for start in starts if seen.endswith(start)), default=0)
        assert sent == seen[: len(seen) - longest]


def test_searches_for_the_same_strings_do_not_disturb_each_other() -> None:
    one, other = StopStrings(["abc"]), StopStrings(["abc"])
    assert one.push("xab") == ("x", None)
    assert other.push("c") == ("c", None), "only the first has seen ab"
    assert one.push("c") == ("", "abc")
    assert (other.push("d"), other.matched) == (("d", None), None)


def test_the_completions_of_one_prompt_share_what_is_searched_for() -> None:
    # 128 of them with 64 strings of 1024 characters took the engine's loop 10 s and 2 GB.
    stops = [letter * 600 for letter in "abcdef"]
    first, second = StopStrings(stops), StopStrings(list(stops))
    assert first._states is second._states
