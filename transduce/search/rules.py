"""Token rules: which tokens a search may write next.

A rule is a function `(allowed (N, V), tokens (N, t), sentence (N,)) -> allowed`: from the tokens written so far
(without start symbol) and each row's sentence in the batch it forbids or allows next tokens. Rules are applied in order
and never change a log-probability, so that scores stay the model's own.
Shapes: N rows, B sentences, t tokens so far, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.search.constraints import UNCONSTRAINED, DecodingConstraints, Phrase
from transduce.search.settings import Limits, check_tokens, require
from transduce.text.vocabulary import Symbols

Rule = Callable[[Tensor, Tensor, Tensor], Tensor]
LOWEST = torch.finfo(torch.float32).min / 1e9  # finite, even when a thousand are summed


def rules_of(
    limits: Limits, symbols: Symbols, constraints: Sequence[DecodingConstraints], device: torch.device
) -> list[Rule]:
    """Rules that hold at every step, in order of application. The prefix comes last: it overrules the others."""
    forced = [constraint.prefix for constraint in constraints]
    rules = [forbid((*symbols.never, *limits.forbid), device)]
    if limits.shortest:
        rules.append(hold_back(symbols.eos, [limits.shortest + len(prefix) for prefix in forced], device))
    if limits.no_repeat:
        rules.append(no_repeat(limits.no_repeat))
    if any(constraint.exclude for constraint in constraints):
        rules.append(exclude([constraint.exclude for constraint in constraints], device))
    if any(forced):
        rules.append(force(forced, device))
    return rules


def checked(constraints: Sequence[DecodingConstraints] | None, batch: int) -> Sequence[DecodingConstraints]:
    """Return one constraint per sentence, UNCONSTRAINED where none are given."""
    if constraints is None:
        return [UNCONSTRAINED] * batch
    if len(constraints) != batch:
        raise ValueError(f"constraints: expected one a sentence, {batch} in all, got {len(constraints)}")
    return constraints


def next_log_probs(logits: Tensor, tokens: Tensor, sentence: Tensor, rules: Sequence[Rule], eos: int) -> Tensor:
    """Log-probabilities (N, V) of the next token, -inf where a rule forbids it; logits (N, V) in any precision.

    A row without any allowed token may end: every row has a token to write.
    """
    log_probs = logits.log_softmax(-1, dtype=torch.float32)
    end = log_probs[:, eos].clamp(min=LOWEST)  # (N,)
    allowed = torch.ones_like(log_probs, dtype=torch.bool)
    for rule in rules:
        allowed = rule(allowed, tokens, sentence)
    log_probs.masked_fill_(~allowed, -torch.inf)
    stuck = log_probs.amax(-1) == -torch.inf  # (N,)
    log_probs[:, eos] = torch.where(stuck, end, log_probs[:, eos])
    return log_probs


def forbid(never: Sequence[int], device: torch.device) -> Rule:
    """Rule: never these tokens."""
    columns = torch.tensor(never, dtype=torch.int64, device=device)

    highest = max(never, default=-1)

    def rule(allowed: Tensor, tokens: Tensor, sentence: Tensor) -> Tensor:
        vocabulary = allowed.shape[1]
        require(highest < vocabulary, "forbid", highest, f"token numbers below the vocabulary's size ({vocabulary})")
        return allowed.index_fill(1, columns, False)

    return rule


def hold_back(eos: int, shortest: Sequence[int], device: torch.device) -> Rule:
    """Rule: no end symbol before a sentence has `shortest` (B) tokens."""
    needed = torch.tensor(shortest, device=device)
    last = max(shortest)

    def rule(allowed: Tensor, tokens: Tensor, sentence: Tensor) -> Tensor:
        step = tokens.shape[1]
        if step >= last:
            return allowed
        restricted = allowed.clone()
        restricted[:, eos] &= needed[sentence] <= step
        return restricted

    return rule


def no_repeat(size: int) -> Rule:
    """Rule: no n-gram of `size` tokens twice in one translation."""

    def rule(allowed: Tensor, tokens: Tensor, sentence: Tensor) -> Tensor:
        step = tokens.shape[1]
        if step < size:
            return allowed
        grams = tokens.unfold(1, size, 1)  # (N, step - size + 1, size)
        latest = tokens[:, step - size + 1 :]  # (N, size - 1): the beginning of an n-gram
        repeats = (grams[..., :-1] == latest[:, None]).all(-1)  # (N, step - size + 1)
        return strike(allowed, grams[..., -1], repeats)

    return rule


def strike(allowed: Tensor, tokens: Tensor, where: Tensor) -> Tensor:
    """Forbid in allowed (N, V) those of tokens (N, M) for which `where` (N, M) is True."""
    count, vocabulary = allowed.shape
    forbidden = torch.zeros(count, vocabulary + 1, dtype=torch.bool, device=allowed.device)
    columns = torch.where(where, tokens, vocabulary)  # an extra column absorbs the others
    return allowed & ~forbidden.scatter(1, columns, True)[:, :vocabulary]


def exclude(phrases: Sequence[Sequence[Phrase]], device: torch.device) -> Rule:
    """Rule: no phrase excluded for a sentence; its last token is forbidden after the others."""
    longest = max(len(phrase) for phrases_of_sentence in phrases for phrase in phrases_of_sentence)
    most = max(map(len, phrases))
    padded = [phrase_table(phrases_of_sentence, most, longest) for phrases_of_sentence in phrases]
    table = torch.tensor(padded, dtype=torch.int64, device=device)  # (B, most, longest)
    highest = max(max(phrase) for phrases_of_sentence in phrases for phrase in phrases_of_sentence)

    def rule(allowed: Tensor, tokens: Tensor, sentence: Tensor) -> Tensor:
        check_tokens("exclude", highest, allowed.shape[1])
        latest = F.pad(tokens, (longest - 1, 0), value=-3)[:, tokens.shape[1] :]  # (N, longest - 1)
        patterns = table[sentence]  # (N, most, longest)
        head, last = patterns[..., :-1], patterns[..., -1]
        return strike(allowed, last, ((head == -1) | (head == latest[:, None])).all(-1) & (last >= 0))

    return rule


def phrase_table(phrases: Sequence[Phrase], most: int, longest: int) -> list[list[int]]:
    """Pad phrases to one length: -1 stands for any token, -2 for none."""
    free, absent = [-1] * longest, [-2] * longest
    return [[*free, *phrase][-longest:] for phrase in phrases] + [absent] * (most - len(phrases))


def force(prefixes: Sequence[Phrase], device: torch.device) -> Rule:
    """Rule: only the prefix's token while it lasts, whatever earlier rules say."""
    longest = max(len(prefix) for prefix in prefixes)
    padded = [[*prefix, *[-1] * (longest - len(prefix))] for prefix in prefixes]
    table = torch.tensor(padded, dtype=torch.int64, device=device)  # (B, longest)
    highest = max(max(prefix, default=-1) for prefix in prefixes)

    def rule(allowed: Tensor, tokens: Tensor, sentence: Tensor) -> Tensor:
        step = tokens.shape[1]
        if step >= longest:
            return allowed
        check_tokens("prefix", highest, allowed.shape[1])
        forced = table[sentence, step, None]  # (N, 1), -1 after the prefix
        return torch.where(forced < 0, allowed, torch.arange(allowed.shape[1], device=allowed.device) == forced)

    return rule
