"""Groups of like length: everybody once, within the budget."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from transduce.text.segment import group_by_length

LENGTHS = st.lists(st.integers(1, 50), max_size=60)


@given(LENGTHS, st.integers(1, 200))
def test_each_sentence_once_longest_first_within_the_budget(lengths: list[int], budget: int) -> None:
    groups = list(group_by_length(lengths, budget))
    order = [number for group in groups for number in group]
    assert sorted(order) == list(range(len(lengths)))
    assert [lengths[number] for number in order] == sorted(lengths, reverse=True)
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[number] for number in group) <= budget


@given(LENGTHS, st.integers(1, 200))
def test_a_group_is_closed_only_when_the_next_sentence_does_not_fit(lengths: list[int], budget: int) -> None:
    groups = list(group_by_length(lengths, budget))
    for group in groups[:-1]:
        assert (len(group) + 1) * lengths[group[0]] > budget


def test_sentences_of_one_length_keep_their_order() -> None:
    assert list(group_by_length([2, 3, 2, 3, 2], 100)) == [[1, 3, 0, 2, 4]]
    assert list(group_by_length([], 100)) == []
    assert list(group_by_length([500], 100)) == [[0]]
