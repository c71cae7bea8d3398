"""What a reward is, how several are added, and the one place where scores are checked.

A reward is any callable `(queries, responses) -> B finite floats`, called on whole batches; the
queries carry the answers. The score of a response must not depend on its batch.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cory_env.records import Query
from cory_env.registry import resolve
from cory_env.rewards.specs import Arguments, RewardTerm, parse_spec

Reward = Callable[[Sequence[Query], Sequence[str]], Sequence[float] | NDArray[np.float64]]
RewardSpec = str | Reward
ELSEWHERE = {"classifier": "agents"}
"""Rewards that another package adds to REWARDS when it is imported."""
LARGEST = 1e100
"""Scores and payoffs beyond it are refused: means and squares of them might not be finite."""


class RewardError(ValueError):
    """A reward raised, or gave something that is not one finite number for each response.

    So is a payoff that is none, which the mixing made of the scores.
    """


@dataclass(frozen=True)
class BatchScores:
    """What a reward says of a batch.

    Attributes:
        scores: [B].
        parts: for a weighted sum by name what each part said, unweighted, [B]; None for a single
            reward.
    """

    scores: NDArray[np.float64]
    parts: Mapping[str, NDArray[np.float64]] | None = None

    def parts_of(self, row: int) -> dict[str, float] | None:
        """The parts of one response."""
        if self.parts is None:
            return None
        return {name: float(scores[row]) for name, scores in self.parts.items()}


@dataclass(frozen=True)
class WeightedReward:
    """A weighted sum of rewards.

    Attributes:
        parts: (weight, reward) pairs; a weight of 0 makes a part that is logged and not paid.
        names: of the parts in logs, all different; empty: those of the functions and classes.
    """

    parts: tuple[tuple[float, Reward], ...]
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.names:
            object.__setattr__(self, "names", _numbered([reward_name(r) for _, r in self.parts]))
        if len(self.names) != len(self.parts) or len(set(self.names)) != len(self.names):
            raise ValueError(
                f"names must be different and one for each of {len(self.parts)} parts, "
                f"got {self.names}"
            )

    def score(self, queries: Sequence[Query], responses: Sequence[str]) -> BatchScores:
        """Return sum_k weight_k * score_k and the scores; each part is called and checked once."""
        total, parts = np.zeros(len(responses)), {}
        for name, (weight, reward) in zip(self.names, self.parts, strict=True):
            parts[name] = checked_scores(reward, queries, responses)
            with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused
                total += weight * parts[name]
        return BatchScores(total, parts)

    def __call__(self, queries: Sequence[Query], responses: Sequence[str]) -> NDArray[np.float64]:
        """Return sum_k weight_k * score_k, [B]."""
        return self.score(queries, responses).scores


def make_reward(spec: RewardSpec) -> Reward:
    """Build a reward from its description.

    Args:
        spec: a name in REWARDS or `module:name` (a function, an object, or a class that is built
            without arguments); one with arguments, such as "classifier(path/to/folder, label=1)"
            (a class, or a function that returns a reward); a sum such as
            "0.7*vader + 0.3*module:name"; or a callable, which is returned.

    Raises:
        ValueError: if it cannot be read, a name is unknown, or arguments do not fit.
    """
    if not isinstance(spec, str):
        if not callable(spec):
            raise ValueError(f"reward must be a name, a weighted sum or a callable, got {spec!r}")
        return spec
    terms = parse_spec(spec)
    if len(terms) == 1 and terms[0].weight == 1.0:
        return _built(terms[0])
    count = Counter(term.spec for term in terms)
    if twice := [name for name, n in count.items() if n > 1]:
        raise ValueError(
            f"reward terms must be different: {twice[0]!r} stands {count[twice[0]]} times in "
            f"{spec!r}; add the weights"
        )
    return WeightedReward(tuple((t.weight, _built(t)) for t in terms), _part_names(terms))


def _part_names(terms: Sequence[RewardTerm]) -> tuple[str, ...]:
    """The bare name where no other term shares it, else with the arguments."""
    count = Counter(term.name for term in terms)
    return tuple(term.name if count[term.name] == 1 else term.spec for term in terms)


def _numbered(names: Sequence[str]) -> tuple[str, ...]:
    """Different names: the second `score` becomes `score (2)`."""
    seen: Counter[str] = Counter()
    result = []
    for name in names:
        seen[name] += 1
        result.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return tuple(result)


def _built(term: RewardTerm) -> Reward:
    from cory_env.rewards import REWARDS  # the table imports the rewards, which import this module

    name = term.name
    if name in ELSEWHERE and name not in REWARDS:
        raise ValueError(
            f"reward {name!r} comes with the package {ELSEWHERE[name]!r}: "
            f"`import {ELSEWHERE[name]}` first"
        )
    found = resolve(name, REWARDS, "reward")
    if term.arguments is None and not inspect.isclass(found):
        reward: Any = found
    else:
        reward = _called(found, term, term.arguments or Arguments())
    if not callable(reward):
        raise ValueError(f"reward {term.spec!r} must be callable, got {type(reward).__name__}")
    return reward  # type: ignore[no-any-return]


def _called(found: Any, term: RewardTerm, arguments: Arguments) -> Any:
    """Call a class, or a function that makes a reward, with the arguments of a term."""
    if not callable(found):
        raise ValueError(f"reward {term.name!r} takes no arguments, got {term.spec!r}")
    _check_arguments(found, term, arguments)
    with_what = (
        "with these arguments"
        if any((arguments.values, arguments.named))
        else ("without arguments")
    )
    try:
        return found(*arguments.values, **dict(arguments.named))
    except ValueError:  # a sentence of the reward's own
        raise
    except Exception as error:  # the user's own class may raise anything
        raise ValueError(f"reward {term.spec!r} cannot be built {with_what} ({error})") from error


def _check_arguments(found: Any, term: RewardTerm, arguments: Arguments) -> None:
    """Refuse arguments that a class or function does not take, naming those that it does."""
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):  # some built-in classes do not say
        return
    kinds = inspect.Parameter
    # What begins with an underscore is private: a loaded word list, a weight file.
    public = [p for p in parameters if not p.name.startswith("_")]
    by_place = [p for p in public if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    by_name = [p for p in public if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)]
    takes = ", ".join(p.name for p in by_name) or "no arguments"
    if len(arguments.values) > len(by_place) and not _has(public, kinds.VAR_POSITIONAL):
        most = (
            f"at most {len(by_place)} without a keyword" if by_place else "none without a keyword"
        )
        raise ValueError(
            f"reward {term.name!r} takes {takes}, and {most}, got {len(arguments.values)} in "
            f"{term.spec!r}"
        )
    given = {p.name for p in by_place[: len(arguments.values)]}
    for keyword, _ in arguments.named:
        if keyword in given:
            raise ValueError(
                f"reward {term.name!r} must get {keyword} once, got it twice in {term.spec!r}"
            )
        if keyword not in {p.name for p in by_name} and not _has(public, kinds.VAR_KEYWORD):
            raise ValueError(f"reward {term.name!r} takes {takes}, got {keyword} in {term.spec!r}")
        given.add(keyword)
    needed = [p for p in (*by_place, *by_name) if p.default is kinds.empty and p.name not in given]
    if needed:
        raise ValueError(
            f"reward {term.name!r} cannot be built without arguments: it needs {needed[0].name}, "
            f"as in {term.name}({needed[0].name}), got {term.spec!r}"
        )


def _has(parameters: Sequence[inspect.Parameter], kind: Any) -> bool:
    return any(p.kind is kind for p in parameters)


def score_batch(reward: Reward, queries: Sequence[Query], responses: Sequence[str]) -> BatchScores:
    """Call a reward once, or each part of a weighted sum once, and check what it gives.

    Args:
        reward: the reward.
        queries: B queries.
        responses: B response texts.

    Raises:
        RewardError: as `checked_scores`.
    """
    if not isinstance(reward, WeightedReward) or len(queries) != len(responses):
        return BatchScores(checked_scores(reward, queries, responses))
    batch = reward.score(queries, responses)
    return BatchScores(
        as_scores(reward_name(reward), batch.scores.tolist(), queries, responses), batch.parts
    )


def checked_scores(
    reward: Reward, queries: Sequence[Query], responses: Sequence[str]
) -> NDArray[np.float64]:
    """Call a reward once and return its scores, [B].

    Args:
        reward: the reward.
        queries: B queries.
        responses: B response texts.

    Raises:
        RewardError: if the reward raises, gives another number of scores, or a score is not a
            finite number of at most 1e100; the message shows the query and the response.
    """
    if len(queries) != len(responses):
        raise ValueError(f"got {len(queries)} queries for {len(responses)} responses")
    if not responses:
        return np.zeros(0)
    try:
        # The reward gets lists of its own: what it does to them must not reach the game.
        given = listed(reward(list(queries), list(responses)))
    except RewardError:  # a part of a sum, or a reward behind `calling`, has said what it was
        raise
    except (Exception, SystemExit) as error:  # sys.exit in a reward would end a run as a success
        where = culprit(reward, queries, responses)
        raise RewardError(
            f"reward {reward_name(reward)} raised {type(error).__name__}: {error}; {where}"
        ) from error
    return as_scores(reward_name(reward), given, queries, responses)


def listed(given: Any) -> Any:
    """The scores of a reward as a list; what holds no scores one by one is returned as it is."""
    single = getattr(given, "ndim", 1) == 0  # an array of one number says that it can be listed
    if isinstance(given, str | bytes) or single or not isinstance(given, Iterable):
        return given
    return list(given)


def as_scores(
    name: str, given: Any, queries: Sequence[Query], responses: Sequence[str]
) -> NDArray[np.float64]:
    """Check what a reward gave for a batch that is not empty, and return it as floats, [B].

    Args:
        name: of the reward, for the error.
        given: from `listed`.
        queries: B queries.
        responses: B response texts.

    Raises:
        RewardError: if there is another number of scores, or one is not a finite number of at most
            1e100.
    """
    if not isinstance(given, list) or len(given) != len(responses):
        got = f"{len(given)} scores" if isinstance(given, list) else type(given).__name__
        raise RewardError(
            f"reward {name} must give {len(responses)} scores, got {got}; "
            f"the first of the batch is {shown(queries[0], responses[0])}"
        )
    rows = zip(given, queries, responses, strict=True)
    return np.array([_number(name, *row) for row in rows], dtype=np.float64)


def _number(name: str, score: Any, query: Query, response: str) -> float:
    try:
        # float("1.0") works, but a reward that gives text has a bug that should show.
        value = math.nan if isinstance(score, str | bytes) else float(score)
    except (OverflowError, TypeError, ValueError):
        value = math.nan
    if not abs(value) <= LARGEST:
        raise RewardError(
            f"reward {name} must give {allowed(value)}, got {score!r} for {shown(query, response)}"
        )
    return value


def allowed(got: float) -> str:
    """What scores and payoffs must be, said of one that is not."""
    return f"numbers up to {LARGEST:g}" if math.isfinite(got) else "finite numbers"


def culprit(reward: Reward, queries: Sequence[Query], responses: Sequence[str]) -> str:
    """Name the row for which a reward raises, by calling it row by row."""
    for query, response in zip(queries, responses, strict=True):
        try:
            listed(reward([query], [response]))
        except (Exception, SystemExit):
            return f"it does so for {shown(query, response)}"
    return (
        f"it does so for a batch of {len(responses)} only, which begins with "
        f"{shown(queries[0], responses[0])}"
    )


def shown(query: Query, response: str) -> str:
    """A query and a response, cut to what fits a sentence."""
    return f"query {query.text[:200]!r} and response {response[:200]!r}"


def reward_name(reward: Reward) -> str:
    """What a reward is called in errors and, without a better name, in logs."""
    name = getattr(reward, "__qualname__", None)
    return str(name) if name is not None else type(reward).__name__


def fingerprints(reward: Reward) -> list[str]:
    """What rewards say of their contents, of a weighted sum one for each part that says anything.

    A reward whose scores follow from files (weights, say) may have a text attribute `fingerprint`
    that changes with them.
    """
    parts = [part for _, part in reward.parts] if isinstance(reward, WeightedReward) else [reward]
    found = (getattr(part, "fingerprint", None) for part in parts)
    return [text for text in found if isinstance(text, str)]
