"""A step of beam search against plain Python: who lives on, who is finished, and that the bound is one."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transduce.search import LengthPenalty
from transduce.search.beam_state import BeamRules, BeamState, Candidates, best_possible, expand, first_unfinished

EOS, LONGEST = 0, 12
PENALTIES = [LengthPenalty(), LengthPenalty(0.6), LengthPenalty(1.0, "power"), LengthPenalty(-0.5)]


def rules_of(penalty: LengthPenalty, shrinking: bool = False) -> BeamRules:
    table = torch.tensor([penalty(length) for length in range(LONGEST + 2)])
    return BeamRules(table, penalty.grows, EOS, shrinking)


@dataclass
class Row:
    """One row in plain Python."""

    live: list[float]
    finished: list[float]
    slots: int
    candidates: list[tuple[int, int, float, float]]  # parent, token, log-probability, total

    def step(self, length: int, rules: BeamRules, bonus: list[float]) -> tuple[list[float], list[float], int]:
        """Live log-probabilities, finished scores and slots after the step."""
        size, kept = len(self.live), len(self.finished)
        penalty = float(rules.penalties[length])
        scores = list(self.finished)
        lost = 0
        for rank, (_, token, _, total) in enumerate(self.candidates[:size]):
            if token == EOS and rank < self.slots:
                scores.append(total / penalty + bonus[rank])
                lost += total > -math.inf
        slots = self.slots - lost if rules.shrinking else self.slots
        going = [total for _, token, _, total in self.candidates if token != EOS][:size]
        live = [total if rank < slots else -math.inf for rank, total in enumerate(going)]
        return live, sorted(scores, reverse=True)[:kept], slots


def drawn(draw: random.Random, size: int, kept: int) -> Row:
    live = sorted((-10 * draw.random() for _ in range(size)), reverse=True)
    finished = sorted((-draw.random() if draw.random() < 0.5 else -math.inf for _ in range(kept)), reverse=True)
    ends = draw.sample(range(size), draw.randint(0, size))  # each path has one end
    tokens = [(parent, EOS) for parent in ends]
    tokens += [(draw.randrange(size), draw.randint(1, 9)) for _ in range(2 * size - len(ends))]
    drawn_totals = [(live[parent] - 3 * draw.random(), parent, token) for parent, token in tokens]
    candidates = [(p, t, total - live[p], total) for total, p, t in sorted(drawn_totals, reverse=True)]
    return Row(live, finished, draw.randint(1, size), candidates)


def tensors(rows: list[Row]) -> tuple[BeamState, Candidates]:
    state = BeamState(
        torch.tensor([row.live for row in rows], dtype=torch.float64),
        torch.tensor([row.finished for row in rows], dtype=torch.float64),
        torch.tensor([row.slots for row in rows]),
    )
    parts = (torch.tensor([[one[i] for one in row.candidates] for row in rows]) for i in (0, 1))
    floats = (torch.tensor([[one[i] for one in row.candidates] for row in rows], dtype=torch.float64) for i in (2, 3))
    return state, Candidates(*parts, *floats)


@given(
    st.randoms(use_true_random=False), st.sampled_from(PENALTIES), st.booleans(), st.integers(1, 5), st.integers(1, 4)
)
@settings(max_examples=150)
def test_a_step_is_that_of_plain_python(
    draw: random.Random, penalty: LengthPenalty, shrinking: bool, size: int, kept: int
) -> None:
    rules, length = rules_of(penalty, shrinking), draw.randint(1, LONGEST)
    rows = [drawn(draw, size, kept) for _ in range(3)]
    bonus = [[-draw.random() for _ in range(size)] for _ in rows]
    state, candidates = tensors(rows)
    for lengths in (length, torch.full((3,), length)):
        found = expand(state, candidates, lengths, rules, torch.tensor(bonus, dtype=torch.float64))
        for number, row in enumerate(rows):
            live, finished, slots = row.step(length, rules, bonus[number])
            assert found.state.live_log_probs[number].tolist() == live
            assert found.state.finished_scores[number].tolist() == pytest.approx(finished, rel=1e-6)
            assert found.state.slots[number] == slots
            tokens = candidates.token[number][found.live[number]]
            assert (tokens != EOS).all()


@given(st.randoms(use_true_random=False), st.sampled_from(PENALTIES))
def test_rows_that_are_done_keep_what_they_have(draw: random.Random, penalty: LengthPenalty) -> None:
    state, candidates = tensors([drawn(draw, 3, 2) for _ in range(2)])
    done = torch.tensor([True, False])
    kept = expand(state, candidates, 4, rules_of(penalty), done=done).state
    went = expand(state, candidates, 4, rules_of(penalty)).state
    assert torch.equal(kept.live_log_probs[0], state.live_log_probs[0])
    assert torch.equal(kept.finished_scores[0], state.finished_scores[0])
    assert torch.equal(kept.live_log_probs[1], went.live_log_probs[1])
    assert torch.equal(kept.finished_scores[1], went.finished_scores[1])


@given(st.randoms(use_true_random=False), st.sampled_from(PENALTIES))
def test_no_path_comes_to_more_than_the_bound(draw: random.Random, penalty: LengthPenalty) -> None:
    rules, length, longest = rules_of(penalty), draw.randint(1, LONGEST - 1), LONGEST
    state, _ = tensors([drawn(draw, 3, 2)])
    bound = float(best_possible(state, length, torch.tensor([longest]), rules)[0])
    best = max(
        (log_prob - worse) / penalty(end)
        for log_prob in state.live_log_probs[0].tolist()
        for end in range(length + 1, longest + 1)
        for worse in (0.0, draw.random())
    )
    assert best <= bound + 1e-6
    assert bound == pytest.approx(best, rel=1e-6)  # and a path that costs nothing more comes to it


def test_the_first_that_have_not_ended() -> None:
    ended = torch.tensor([[True, False, True, False], [False, False, False, True]])
    assert first_unfinished(ended, 2).tolist() == [[1, 3], [0, 1]]
