"""Static batch shapes: the cheapest widths, every pair once, full batches, equal for any number of processes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import toys

from transduce.data.batching import GRID, MOVED, Batches, Shapes, choose_shapes, cut, plan_static
from transduce.data.corpus import Corpus, Span
from transduce.data.stream import Share


def lengths(count: int, mean: float = 25, spread: float = 0.45, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Log-normal around `mean`, targets a little longer or shorter than their sources; with the end symbol."""
    generator = np.random.default_rng(seed)
    source = np.exp(generator.normal(np.log(mean), spread, count))
    target = source * np.exp(generator.normal(0, spread / 3, count))
    source, target = (np.clip(side.round().astype(np.int64), 3, 100) for side in (source, target))
    return source, target


def cost(longer: np.ndarray, widths: tuple[int, ...]) -> int:
    chosen = [next(width for width in widths if width >= length) for length in longer.tolist()]
    return sum(width * (width + MOVED) for width in chosen)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_no_other_widths_cost_less(count: int) -> None:
    source, target = lengths(300, mean=20)
    longer = np.maximum(source, target)
    shapes = choose_shapes(source, target, np.ones(300), 1000, count)
    edges = range(GRID, int(longer.max()) + GRID, GRID)
    others = itertools.combinations(edges, min(count, len(edges)))
    cheapest = min(cost(longer, widths) for widths in others if widths[-1] == edges[-1])
    assert len(shapes) <= count
    assert cost(longer, tuple(shapes.widths.tolist())) == cheapest


def test_pairs_that_are_never_drawn_count_for_nothing() -> None:
    source = np.array([10] * 50 + [30] * 50)
    both = choose_shapes(source, source, np.ones(100), 400, 1)
    short = choose_shapes(source, source, np.array([1.0] * 50 + [0.0] * 50), 400, 1)
    assert both.widths.tolist() == short.widths.tolist() == [32]  # what may come again must fit
    assert both.rows.tolist() == [24]  # 400 / 20 and some to spare, in eights
    assert short.rows.tolist() == [48]  # 400 / 10


@pytest.mark.parametrize("tokens", [200, 1000, 25000])
def test_every_pair_is_in_one_batch_that_holds_it(tokens: int) -> None:
    source, target = lengths(5000)
    shapes = choose_shapes(source, target, np.ones(5000), tokens, 4)
    pairs, starts, kinds = cut(source, target, shapes)
    assert sorted(pairs.tolist()) == list(range(5000))
    assert len(starts) == len(kinds) + 1
    for number, kind in enumerate(kinds):
        members = pairs[starts[number] : starts[number + 1]]
        assert 0 < len(members) <= shapes.rows[kind]
        assert max(source[members].max(), target[members].max()) <= shapes.widths[kind]
        assert source[members].sum() <= shapes.capacity[0]
        assert target[members].sum() <= shapes.capacity[1]


def test_a_pair_longer_than_the_budget_still_fits() -> None:
    source = np.array([5, 6, 500])
    shapes = choose_shapes(source, source, np.ones(3), 100, 2)
    assert min(shapes.capacity) >= 500
    assert sorted(cut(source, source, shapes)[0].tolist()) == [0, 1, 2]


def test_no_pairs_make_no_batches() -> None:
    nothing = np.zeros(0, dtype=np.int64)
    shapes = choose_shapes(nothing, nothing, np.zeros(0), 100, 3)
    assert len(cut(nothing, nothing, shapes)[2]) == 0


@pytest.mark.parametrize(("tokens", "count"), [(4096, 4), (4096, 6), (25000, 6), (25000, 8)])
def test_batches_fill_their_capacity(tokens: int, count: int) -> None:
    source, target = lengths(200_000)
    shapes = choose_shapes(source, target, np.ones(len(source)), tokens, count)
    _, _, kinds = cut(source, target, shapes)
    assert (source.sum() + target.sum()) / (sum(shapes.capacity) * len(kinds)) > 0.985


@pytest.mark.parametrize("count", [30_000, 60_000])
def test_no_batch_but_the_last_is_part_empty(count: int) -> None:
    source, target = lengths(count)
    shapes = choose_shapes(source, target, np.ones(count), 25000, 3)
    pairs, starts, kinds = cut(source, target, shapes)
    sums = (np.add.reduceat(side[pairs], starts[:-1]) for side in (source, target))
    fullest = np.maximum(*(total / room for total, room in zip(sums, shapes.capacity, strict=True)))
    assert np.sort(fullest)[1:].min() > 0.97
    assert len(kinds) == np.ceil(target.sum() / shapes.capacity[1])


def test_which_pairs_go_together_changes_with_their_order() -> None:
    source, target = lengths(3000)
    shapes = choose_shapes(source, target, np.ones(3000), 4096, 3)
    order = np.random.default_rng(3).permutation(3000)
    first, second = cut(source, target, shapes), cut(source[order], target[order], shapes)
    alike = set(first[0][: first[1][1]]) & set(order[second[0][: second[1][1]]])
    assert len(alike) < 0.75 * first[1][1]


def test_the_side_with_fewer_tokens_has_less_room() -> None:
    source, target = lengths(50_000)
    target = np.minimum(target + target // 2, 120)
    shapes = choose_shapes(source, target, np.ones(len(source)), 4096, 6)
    _, _, kinds = cut(source, target, shapes)
    assert shapes.capacity[1] == 4096
    assert shapes.capacity[0] < 0.75 * 4096
    assert (source.sum() + target.sum()) / (sum(shapes.capacity) * len(kinds)) > 0.96


def test_the_plan_follows_from_lengths_seed_and_epoch() -> None:
    source, target = (side.astype(np.int32) - 1 for side in lengths(2000))
    shapes = choose_shapes(source + 1, target + 1, np.ones(2000), 1000, 4)
    span = [Span("all", 0, 2000, 1.0, "")]

    def plan(seed: int, epoch: int, chosen: Shapes = shapes) -> list[list[int]]:
        made = plan_static(source, target, span, chosen, seed, epoch)
        assert sorted(made.pairs.tolist()) == list(range(2000))
        return [made.batch(number).tolist() for number in range(len(made))]

    assert plan(1, 0) == plan(1, 0)
    assert plan(1, 0) != plan(2, 0)
    assert plan(1, 0) != plan(1, 1)


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> Batches:
    corpus = Corpus.open(toys.corpus(tmp_path_factory.mktemp("toy"), toys.reversals(120, longest=20)))
    return Batches(corpus.split("train"), corpus.tokenizers, 160, 4, seed=1, shapes=2, packed=True)


def test_batches_have_few_shapes_and_empty_rows_hold_nothing(batches: Batches) -> None:
    plan = batches.plan(0)
    seen, words = set(), 0
    for number in range(len(plan)):
        batch = batches.make(plan, 0, number)
        pairs = len(plan.batch(number))
        seen.add((tuple(batch.source.shape), tuple(batch.gold.shape), batch.capacity))
        assert len(batch.source) == plan.rows[number]
        assert batch.source_mask[:pairs].any(1).all()
        assert not batch.source_mask[pairs:].any()
        assert not batch.target_mask[pairs:].any()
        words += int(batch.target_mask.sum())
    assert len(seen) == len(batches.few) == 2
    assert words == batches.split.target_lengths.sum() + len(batches.split)


def test_entered_anywhere_the_stream_is_the_same(batches: Batches) -> None:
    whole = list(itertools.islice(batches.stream(0, 0), len(batches.plan(0)) + 3))
    for at in (1, 4, len(whole) - 3):
        epoch, position, batch = whole[at]
        again = next(batches.stream(epoch, position))
        assert again[:2] == (epoch, position)
        assert all((a == b).all() for a, b in zip(again[2].tensors(), batch.tensors(), strict=True))


@pytest.mark.parametrize("size", [2, 4])
def test_processes_share_the_same_batches(batches: Batches, size: int) -> None:
    count = len(batches.plan(0))
    alone = [portion.batch for portion in itertools.islice(Share().portions(batches, 0, 0), count)]
    shares = [list(itertools.islice(Share(rank, size).portions(batches, 0, 0), count)) for rank in range(size)]
    for number, whole in enumerate(alone):
        assert whole is not None
        for rank, portions in enumerate(shares):
            portion = portions[number]
            assert portion.batch is not None
            if portion.counted:
                assert (portion.batch.source == whole.source[rank::size]).all()
                assert portion.batch.capacity == (0, 0)
        tokens = [int(portions[number].batch.target_mask.sum()) * portions[number].counted for portions in shares]  # type: ignore[union-attr]
        assert sum(tokens) == int(whole.target_mask.sum())
