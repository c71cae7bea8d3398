"""The `custom` task: the user's own data, prompts and reward, without a line of code."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from cory_env.data_files import Row
from cory_env.records import Query
from cory_env.rewards.base import RewardSpec, make_reward
from cory_env.tasks.from_data import DataTask

QUERY, REFERENCES = "{query}", "{references}"
_PLACE = re.compile(re.escape(QUERY) + "|" + re.escape(REFERENCES))
# A word in braces, but not what LaTeX has behind a command: \boxed{} and \frac{a}{b}.
_BRACED = re.compile(r"(?<![A-Za-z}])\{\s*[\w.!-]*\s*\}")


class CustomTask(DataTask):
    r"""Queries of a file, folder or hub data set; the user names model and reward.

    A template is a text with `{query}`; an observer's has `{references}` as well, where the earlier
    responses stand, one a line. Any other word in braces is refused. The two characters `\n` in it
    are a line break. A template may also be the path of a text file that holds it.
    """

    name = "custom"
    default_model = None
    default_reward = None
    max_prompt_tokens = 512
    max_response_tokens = 128
    formats = "a .txt, .jsonl, .csv or .parquet file, a folder of such files or a hub name"
    training_defaults: Mapping[str, float | int | str] = {"learning_rate": 1e-5}

    def __init__(
        self,
        *,
        query_column: str = "query",
        answer_column: str | None = None,
        pioneer_template: str = QUERY,
        observer_template: str | None = None,
        hidden_reward: RewardSpec | None = None,
        subset: str | None = None,
        data: str | Path | None = None,
        reward: RewardSpec | None = None,
    ) -> None:
        """Say where the queries are and how they are asked.

        Args:
            query_column: the column (or JSON key) of the queries; `.txt` has none.
            answer_column: that of the answers, which no row may lack then; None: `answer`, where
                there is one.
            pioneer_template: the query-only prompt.
            observer_template: the prompt with earlier responses; None: `Reference: ` and these in
                a line above the pioneer's.
            hidden_reward: a second scorer that is only reported, never paid.
            subset: which configuration of a hub's data set, or folder inside the given one.
            data: file, folder or hub name.
            reward: a name, a weighted sum or a callable.

        Raises:
            ValueError: if a template lacks a place or has an unknown one, or a keyword is no text.
        """
        super().__init__(data=data, reward=reward)
        for name, value, may_be in (
            ("query_column", query_column, str),
            ("answer_column", answer_column, str | None),
            ("subset", subset, str | None),
        ):
            if not isinstance(value, may_be) or value == "":
                raise ValueError(f"{name} must be text, got {value!r}")
        self.names = (query_column,)
        self.answer_column = answer_column
        self.subset = subset
        self.pioneer_template = _template("pioneer_template", pioneer_template, QUERY)
        if REFERENCES in self.pioneer_template:
            raise ValueError(
                f"pioneer_template must not contain {REFERENCES}: a pioneer reads nobody"
            )
        if observer_template is None:
            observer_template = f"Reference: {REFERENCES}\n{self.pioneer_template}"
        self.observer_template = _template(
            "observer_template", observer_template, QUERY, REFERENCES
        )
        if hidden_reward is not None:
            self.hidden_reward = make_reward(hidden_reward)

    def query_of(self, row: Row) -> Query:
        """Return the query of a row, with its answer where there is one.

        Raises:
            ValueError: if there is none though the user has named its column.
        """
        answer_column = self.answer_column or "answer"
        if self.answer_column is not None:
            row.name_of((answer_column,))
        answer = row.answer(answer_column)
        if answer is None and self.answer_column is not None:
            raise ValueError(f"{row.source}: {answer_column!r} is empty")
        return Query(row.text(*self.names), answer, row.metadata(*self.names, answer_column))

    def prompt(self, role: str, query: Query, earlier_responses: Sequence[str]) -> str:
        """Return the pioneer's template filled in, or the observer's; see `Task.prompt`."""
        template = self.observer_template if earlier_responses else self.pioneer_template
        filled = {QUERY: query.text, REFERENCES: "\n".join(earlier_responses)}
        # In one pass: what a query or a response spells is no place to fill.
        return _PLACE.sub(lambda place: filled[place[0]], template)


def _template(name: str, given: str, *places: str) -> str:
    if not isinstance(given, str):
        raise ValueError(f"{name} must be text, got {given!r}")
    text = given if QUERY in given else _file_text(name, given)
    missing = [place for place in places if place not in text]
    if missing:
        no_file = "" if Path(given).suffix == "" or "\n" in given else ", and there is no such file"
        raise ValueError(
            f"{name} must contain {' and '.join(missing)}, or name a file that does, got "
            f"{text[:200]!r}{no_file if text == given else ''}"
        )
    unknown = [word for word in _BRACED.findall(text) if word not in (QUERY, REFERENCES)]
    if unknown:
        raise ValueError(
            f"{name} may have no other words in braces than {' and '.join(places)}, got "
            f"{unknown[0]!r} in {text[:200]!r}"
        )
    return text.replace("\\n", "\n")


def _file_text(name: str, given: str) -> str:
    """The text of a file, without the line break at its end; what is no file is a template."""
    try:
        path = Path(given)
        return path.read_text(encoding="utf-8").removesuffix("\n") if path.is_file() else given
    except (OSError, ValueError) as error:
        raise ValueError(f"{name} {given[:200]!r} cannot be read ({error})") from error
