"""The `gsm8k` task: grade-school word problems, graded right or wrong by the final number."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from cory_env.data_files import Row
from cory_env.records import Query
from cory_env.rewards.exact_number import MARKER, extract_number
from cory_env.tasks.from_data import DataTask

WORKED_EXAMPLE = """\
Question: Mia buys 3 boxes of 6 pencils. She gives 5 pencils to her brother and finds 2 more in a \
drawer. How many pencils does she have now?
Answer: Mia buys 3 boxes of 6 pencils, which are 3 * 6 = 18 pencils. After giving away 5 she has \
18 - 5 = 13. With the 2 from the drawer she has 13 + 2 = 15. The answer is 15.
"""
_CALCULATION = re.compile(r"<<[^<>]*>>")

WORD_PROBLEM_DEFAULTS: Mapping[str, float | int | str] = {
    "learning_rate": 1e-5,
    "kl_coef": 0.01,
    "iterations": 100,
    "batch_size": 64,
    "eval_interval": 20,
    "eval_queries": 128,
}
"""The paper's of its PPO, whose model is large: a tiny one wants a larger learning rate."""


class Gsm8kTask(DataTask):
    """Solve a word problem step by step; 1.0 for the right final number, else 0.0.

    The prompt is one worked example, then the question and `Answer:`. An observer reads each
    earlier response behind `Reference:`, between the question and `Answer:`.

    A query's `answer` is the gold number as text, without commas; `metadata["solution"]` is the
    published solution without its `<<..>>` marks.

    Source: Ma et al., "Coevolving with the Other You" (CORY), NeurIPS 2024, section 4.2; the worked
        example and the line breaks are ours, since the paper gives neither in full.
    """

    name = "gsm8k"
    default_model = None
    default_reward = "exact_number"
    max_prompt_tokens = 512
    max_response_tokens = 256
    formats = "the published folder or .jsonl file, parquet files or a hub name"
    names = ("question",)
    subset = "main"
    training_defaults = WORD_PROBLEM_DEFAULTS

    def query_of(self, row: Row) -> Query:
        """Return the question with its gold number.

        Raises:
            ValueError: if the answer has no number behind `####`.
        """
        question, solution = row.text("question"), row.text("answer")
        _, marker, behind = solution.rpartition(MARKER)
        number = extract_number(behind) if marker else None
        if number is None:
            raise ValueError(
                f"{row.source}: 'answer' must end in '#### ' and a number, got "
                f"{solution[-60:]!r}; task custom takes answers of other forms"
            )
        solved = _CALCULATION.sub("", solution)
        others = row.metadata("question", "answer")
        return Query(question.strip(), f"{number:f}", {"solution": solved, **others})

    def prompt(self, role: str, query: Query, earlier_responses: Sequence[str]) -> str:
        """Return worked example and question, with what the role may read; see `Task.prompt`."""
        return word_problem(query, earlier_responses)


def word_problem(query: Query, earlier_responses: Sequence[str]) -> str:
    """Return the prompt of a word problem, to be continued by its solution."""
    # A blank line inside would look like the end of the reference.
    references = [f"Reference: {' '.join(text.split())}\n" for text in earlier_responses]
    return f"{WORKED_EXAMPLE}\nQuestion: {query.text}\n{''.join(references)}Answer:"
