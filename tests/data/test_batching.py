"""The plan of an epoch and the stream of batches: whole, within budget, few shapes, a pure function of its place."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transduce.core.errors import DataError
from transduce.data.batch import Batch
from transduce.data.batching import Batches, BatchPlan, bucket_edges, draw, plan_epoch
from transduce.data.corpus import Corpus, Span
from transduce.data.formats.parallel import ParallelText
from transduce.data.prepare.run import Prepare, prepare
from transduce.text.train_tokenizer import SentencePiece

# ---- the plan --------------------------------------------------------------------------------------------------------


def make_plan(
    lengths: list[tuple[int, int]], tokens: int, step: int, weights: tuple[float, ...] = (1.0,), epoch: int = 0
) -> BatchPlan:
    """The pairs are dealt out evenly to corpora of the given weights."""
    cuts = [len(lengths) * number // len(weights) for number in range(len(weights) + 1)]
    parts = zip(itertools.pairwise(cuts), weights, strict=True)
    spans = [Span(str(start), start, stop, weight, "") for (start, stop), weight in parts]
    sides = np.array(lengths, dtype=np.int32).reshape(-1, 2)
    return plan_epoch(sides[:, 0], sides[:, 1], spans, tokens, step, seed=5, epoch=epoch)


pair_lengths = st.lists(st.tuples(st.integers(0, 90), st.integers(0, 90)), max_size=150)


def plain_plan(lengths: list[tuple[int, int]], tokens: int, step: int, epoch: int) -> list[tuple[list[int], list[int]]]:
    """The same plan in plain Python: (pairs, shape) of each batch. Runs resume by it, so it may never change."""
    generator = np.random.default_rng([5, epoch])
    pairs = generator.permutation(np.arange(len(lengths))).tolist()
    edges = bucket_edges(max((max(pair) for pair in lengths), default=0) + 1, step).tolist()
    shape_of = {pair: tuple(next(e for e in edges if e > length) for length in lengths[pair]) for pair in pairs}
    batches, left = [], []
    for shape in sorted(set(shape_of.values())):
        group, rows = [pair for pair in pairs if shape_of[pair] == shape], max(1, tokens // max(shape))
        full = len(group) // rows * rows
        batches += [(group[at : at + rows], [*shape]) for at in range(0, full, rows)]
        left += group[full:]
    joined: list[int] = []
    for pair in sorted(left, key=lambda pair: shape_of[pair][::-1]):
        widest = max(max(shape_of[member]) for member in [*joined, pair])
        if joined and (len(joined) + 1) * widest > tokens:
            batches.append((joined, [max(shape_of[m][side] for m in joined) for side in (0, 1)]))
            joined = []
        joined = [*joined, pair]
    if joined:
        batches.append((joined, [max(shape_of[m][side] for m in joined) for side in (0, 1)]))
    return [batches[number] for number in generator.permutation(len(batches))]


@settings(deadline=None)
@given(pair_lengths, st.integers(1, 400), st.sampled_from([1, 4, 8]), st.integers(0, 3))
def test_the_plan_against_plain_python(lengths: list[tuple[int, int]], tokens: int, step: int, epoch: int) -> None:
    plan = make_plan(lengths, tokens, step, epoch=epoch)
    found = [(plan.batch(number).tolist(), plan.shapes[number].tolist()) for number in range(len(plan))]
    assert found == plain_plan(lengths, tokens, step, epoch)


@settings(deadline=None)
@given(pair_lengths, st.integers(1, 400), st.sampled_from([1, 4, 8]), st.integers(0, 3))
def test_every_pair_once_in_its_rectangle_and_within_budget(
    lengths: list[tuple[int, int]], tokens: int, step: int, epoch: int
) -> None:
    plan = make_plan(lengths, tokens, step, epoch=epoch)
    assert sorted(plan.pairs.tolist()) == list(range(len(lengths)))
    assert plan.starts.tolist() == sorted(plan.starts.tolist())
    assert (plan.starts[0], plan.starts[-1], len(plan.starts)) == (0, len(lengths), len(plan) + 1)
    for number in range(len(plan)):
        members, shape = plan.batch(number).tolist(), plan.shapes[number].tolist()
        assert len(members) >= 1
        assert all(lengths[pair][side] + 1 <= shape[side] for pair in members for side in (0, 1))
        assert len(members) * max(shape) <= tokens or len(members) == 1  # one pair over the budget goes alone
        edges = set(bucket_edges(91, step).tolist())
        assert set(shape) <= edges


@settings(deadline=None)
@given(pair_lengths, st.integers(8, 400), st.integers(0, 3))
def test_the_plan_is_a_pure_function_of_seed_and_epoch(lengths: list[tuple[int, int]], tokens: int, epoch: int) -> None:
    np.random.seed(0)
    first = make_plan(lengths, tokens, 8, epoch=epoch)
    np.random.seed(99)
    second = make_plan(lengths, tokens, 8, epoch=epoch)
    assert np.array_equal(first.pairs, second.pairs)
    assert np.array_equal(first.starts, second.starts)
    assert np.array_equal(first.shapes, second.shapes)


def natural(count: int, seed: int = 1) -> list[tuple[int, int]]:
    """Lengths as text has them: the sides alike, a long tail."""
    generator = np.random.default_rng(seed)
    source = np.clip(generator.gamma(3, 8, count), 1, 200)
    target = np.clip(source * generator.normal(1.1, 0.2, count), 1, 200)
    return [(int(a), int(b)) for a, b in zip(source, target, strict=True)]


def test_epochs_and_seeds_differ() -> None:
    lengths = natural(500)
    orders = [make_plan(lengths, 1000, 8, epoch=epoch).pairs.tolist() for epoch in range(3)]
    assert len({tuple(order) for order in orders}) == 3
    sides = np.array(lengths, dtype=np.int32)
    span = [Span("", 0, 500, 1.0, "")]
    other = plan_epoch(sides[:, 0], sides[:, 1], span, 1000, 8, seed=6, epoch=0)
    assert other.pairs.tolist() != orders[0]


def test_batches_are_full_few_in_shape_and_in_no_order_of_length() -> None:
    lengths = natural(20_000)
    plan = make_plan(lengths, 4096, 8)
    real = sum(a + 1 + b + 1 for a, b in lengths)
    padded = sum((plan.starts[i + 1] - plan.starts[i]) * plan.shapes[i].sum() for i in range(len(plan)))
    assert real / padded > 0.75
    assert padded / (2 * 4096 * len(plan)) > 0.75
    assert len({tuple(shape) for shape in plan.shapes.tolist()}) < 60
    longest = plan.shapes.max(axis=1)
    correlation = np.corrcoef(longest[1:], longest[:-1])[0, 1]
    assert abs(correlation) < 0.2


def test_members_of_a_batch_change_from_epoch_to_epoch() -> None:
    lengths = [(10, 10)] * 200
    together = []
    for epoch in range(2):
        plan = make_plan(lengths, 160, 8, epoch=epoch)
        together.append({frozenset(plan.batch(number).tolist()) for number in range(len(plan))})
    assert not together[0] & together[1]


@pytest.mark.parametrize("step", [1, 4, 8])
@pytest.mark.parametrize("longest", [1, 7, 8, 9, 1000])
def test_edges_grow_from_steps_to_quarters(longest: int, step: int) -> None:
    edges = bucket_edges(longest, step).tolist()
    assert edges[0] == step
    assert edges[-1] >= longest
    assert len(edges) == 1 or edges[-2] < longest
    assert all(edge % step == 0 for edge in edges)
    assert all(
        shorter < longer <= max(shorter + step, 1.25 * shorter + step) for shorter, longer in itertools.pairwise(edges)
    )


@pytest.mark.parametrize(("weight", "times"), [(1.0, {1}), (2.0, {2}), (3.0, {3}), (0.5, {0, 1}), (1.25, {1, 2})])
def test_weights(weight: float, times: set[int]) -> None:
    plan = make_plan(natural(400), 1000, 8, weights=(weight, 1.0))
    counts = Counter(plan.pairs.tolist())
    assert {counts[pair] for pair in range(200)} == times
    assert sum(counts[pair] for pair in range(200)) == 200 * weight
    assert {counts[pair] for pair in range(200, 400)} == {1}


def test_a_fraction_is_drawn_anew_each_epoch() -> None:
    drawn = [set(make_plan(natural(100), 1000, 8, weights=(0.5,), epoch=epoch).pairs.tolist()) for epoch in range(8)]
    assert {len(pairs) for pairs in drawn} == {50}
    assert len(set.union(*drawn)) > 95
    spans = [Span("a", 0, 10, 0.5, ""), Span("b", 10, 14, 1.5, "")]
    assert len(draw(spans, np.random.default_rng(1))) == 5 + 6
    assert len(draw([], np.random.default_rng(1))) == 0


# ---- the stream ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Two corpora, the second one tagged, whose targets are the sources backwards."""
    folder, chooser = tmp_path_factory.mktemp("batching"), random.Random(1)
    words = ["".join(chooser.choices("abcdefgh", k=chooser.randint(2, 8))) for _ in range(80)]

    def write(name: str, count: int, weight: float, tag: str) -> ParallelText:
        lines = [" ".join(chooser.choices(words, k=chooser.randint(1, 9))) for _ in range(count)]
        path = folder / f"{name}.tsv"
        path.write_bytes("".join(f"{line}\t{line[::-1]}\n" for line in lines).encode())
        return ParallelText(path=str(path), name=name, weight=weight, tag=tag)

    corpora = (write("plain", 150, 1.0, ""), write("tagged", 100, 0.5, "<2xx>"))
    return prepare(
        Prepare(
            str(folder / "corpus"), corpora, tokenizer=SentencePiece(vocabulary=150, byte_fallback=False), workers=1
        )
    )


@pytest.fixture(params=[0.0, 0.2], ids=["fixed", "sampled"])
def batches(corpus: Corpus, request: pytest.FixtureRequest) -> Batches:
    return Batches(corpus.split("train"), corpus.tokenizers, tokens=256, step=8, seed=3, sampling=request.param)


def same(left: Batch, right: Batch) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left.tensors(), right.tensors(), strict=True))


def take(batches: Batches, epoch: int, position: int, count: int) -> list[tuple[int, int, Batch]]:
    return list(itertools.islice(batches.stream(epoch, position), count))


def test_entering_anywhere_gives_the_same_batches(batches: Batches) -> None:
    first, second = len(batches.plan(0)), len(batches.plan(1))
    whole = take(batches, 0, 0, first + second + 2)
    places = [(epoch, position) for epoch, position, _ in whole]
    assert places == [*((0, n) for n in range(first)), *((1, n) for n in range(second)), (2, 0), (2, 1)]
    for skip in (1, first // 2, first - 1, first, first + 3, first + second):
        epoch, position = places[skip]
        for (*place, batch), (*other_place, other) in zip(
            take(batches, epoch, position, 2), whole[skip:], strict=False
        ):
            assert place == other_place
            assert same(batch, other)


def test_entering_at_the_end_of_an_epoch_is_entering_the_next(batches: Batches) -> None:
    """A checkpoint after the last batch of an epoch says (epoch, number of batches)."""
    [(epoch, position, batch)] = take(batches, 0, len(batches.plan(0)), 1)
    assert (epoch, position) == (1, 0)
    assert same(batch, take(batches, 1, 0, 1)[0][2])


def texts_of(batches: Batches, batch: Batch) -> list[tuple[str, str]]:
    source, target = batches.tokenizers.source, batches.tokenizers.target
    return [
        (source.decode(row[mask].tolist()), target.decode(gold[kept].tolist()))
        for row, mask, gold, kept in zip(batch.source, batch.source_mask, batch.gold, batch.target_mask, strict=True)
    ]


def test_an_epoch_holds_the_text_of_its_pairs(batches: Batches) -> None:
    split, plan = batches.split, batches.plan(0)
    tokenizers = batches.tokenizers
    for epoch, position, batch in take(batches, 0, 0, len(plan)):
        assert epoch == 0
        pairs = [split.pair(pair) for pair in plan.batch(position).tolist()]
        expected = [(tokenizers.source.decode(a.tolist()), tokenizers.target.decode(b.tolist())) for a, b in pairs]
        assert texts_of(batches, batch) == expected
        if batches.sampling == 0:
            assert (batch.source.size(1), batch.gold.size(1)) == tuple(plan.shapes[position])
            assert batch.source.numel() <= batches.tokens
        for width in (batch.source.size(1), batch.gold.size(1)):
            assert width in bucket_edges(width, batches.step)


def test_sampling_cuts_words_anew_and_keeps_tags(corpus: Corpus) -> None:
    fixed = Batches(corpus.split("train"), corpus.tokenizers, tokens=256, step=8, seed=3)
    sampled = replace(fixed, sampling=0.1)
    plan, tag = fixed.plan(0), corpus.tokenizers.source.token("<2xx>")
    changed = tagged = 0
    for number in range(len(plan)):
        plain, cut = fixed.make(plan, 0, number), sampled.make(plan, 0, number)
        assert same(cut, sampled.make(plan, 0, number))
        for row, pair in enumerate(plan.batch(number).tolist()):
            old = plain.source[row][plain.source_mask[row]].tolist()
            new = cut.source[row][cut.source_mask[row]].tolist()
            changed += old != new
            tagged += new[0] == tag
            assert (new[0] == tag) == (pair >= fixed.split.spans[1].start)
            assert tag not in new[1:]
            assert new[-1] == corpus.tokenizers.source.symbols.eos
    assert tagged == 50
    assert changed > 50
    again = sampled.make(sampled.plan(0), 1, 0)  # the same pairs in another epoch
    assert not same(again, sampled.make(plan, 0, 0))


def test_another_seed_is_another_order_and_another_cut(corpus: Corpus) -> None:
    one, other = (Batches(corpus.split("train"), corpus.tokenizers, 256, 8, seed, 0.2) for seed in (1, 2))
    assert one.plan(0).pairs.tolist() != other.plan(0).pairs.tolist()
    assert not same(one.make(one.plan(0), 0, 0), other.make(one.plan(0), 0, 0))


@pytest.mark.slow
def test_sampling_is_the_same_in_another_process(corpus: Corpus) -> None:
    """What exact resuming needs: batches are a function of (seed, epoch, position) and of nothing else."""
    program = (
        "import sys; from transduce.data.corpus import Corpus; from transduce.data.batching import Batches;"
        "corpus = Corpus.open(sys.argv[1]);"
        "batches = Batches(corpus.split('train'), corpus.tokenizers, 2048, 8, 3, 0.1);"
        "print(batches.make(batches.plan(0), 0, 0).source.tolist())"
    )
    command = [sys.executable, "-c", program, str(corpus.folder)]
    outputs = [subprocess.run(command, capture_output=True, check=True).stdout for _ in range(2)]
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("model", ["unigram", "bpe"])
def test_resampling_leaves_text_tags_and_unknown_tokens(model: str) -> None:
    lines = ["the cat sat on the mat", "the dog sat on the log", "<2xx> a cat and a dog", "mat and log and cat"] * 5
    config = SentencePiece(model, vocabulary=45, byte_fallback=False, symbols=("<2xx>",))  # type: ignore[arg-type]
    tokenizer = config.train(lines, lines).tokenizers.source
    tag = tokenizer.token("<2xx>")
    sentences = tokenizer.encode(["the cat sat", "the dog", "the § mat", "", "cat <2xx> dog"])
    sentences[1].insert(0, tag)
    assert tokenizer.symbols.unk in sentences[2]
    seen = set()
    for seed in range(40):
        drawn = tokenizer.sample(sentences, 0.1, seed)
        assert drawn == tokenizer.sample(sentences, 0.1, seed)
        assert [tokenizer.decode(list(new)) for new in drawn] == [tokenizer.decode(old) for old in sentences]
        assert drawn[1][0] == tag
        assert drawn[2].count(tokenizer.symbols.unk) == sentences[2].count(tokenizer.symbols.unk)
        assert drawn[3] == []
        assert list(drawn[4]).count(tag) == 1
        seen.add(tuple(drawn[0]))
    assert len(seen) > 1


def test_an_epoch_without_pairs_is_refused(corpus: Corpus) -> None:
    split = corpus.split("train")
    split.spans = [Span("small", 0, 1, 0.3, "")]
    split.__dict__.pop("source_lengths", None)
    with pytest.raises(DataError) as error:
        next(Batches(split, corpus.tokenizers, 256, 8, 1).stream(0, 0))
    assert str(error.value) == (
        "train: an epoch would have no pairs (pairs * weight: small 1 * 0.3); give it more text, or a larger weight"
    )


def test_an_epoch_without_measure_is_refused(corpus: Corpus) -> None:
    split = corpus.split("train")
    split.spans = [Span(f"part{number}", 0, 10, 1e6, "") for number in range(9)]
    with pytest.raises(DataError) as error:
        next(Batches(split, corpus.tokenizers, 256, 8, 1).stream(0, 0))
    assert str(error.value).startswith(
        "train: an epoch would have 90,000,000 pairs (pairs * weight: part0 10 * 1000000.0,"
    )
    assert str(error.value).endswith(
        "part7 10 * 1000000.0, ...), and for so few 4,194,304 are the most; prepare the corpus again with lower weights"
    )
