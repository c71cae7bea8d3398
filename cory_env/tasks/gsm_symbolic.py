"""The `gsm_symbolic` task: word problems without a download, from templates of reasoning-gym."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from cory_env.extras import optional
from cory_env.records import Query
from cory_env.rewards.exact_number import extract_number
from cory_env.tasks.base import Task, check_split
from cory_env.tasks.gsm8k import WORD_PROBLEM_DEFAULTS, word_problem

SEEDS: Mapping[str, int] = {"test": 20_243, "validation": 20_242, "train": 20_241}
"""Of the generator, by split. A text that a split above has is left out of those below."""
SIZES: Mapping[str, int] = {"test": 1024, "validation": 512, "train": 4096}
"""Problems drawn for each split; repeated texts count once."""


class GsmSymbolicTask(Task):
    """Solve a word problem made from a template; prompts and score are those of `gsm8k`.

    The problems come from the generator `gsm_symbolic` of reasoning-gym (extra `gsm-symbolic`),
    with fixed seeds: the same for ever with the same version of it. Only questions and answers are
    taken. Its scorer is not: it reads the first number of a response, sees no minus sign, and pays
    something for wrong numbers.
    """

    name = "gsm_symbolic"
    default_model = None
    default_reward = "exact_number"
    max_prompt_tokens = 512
    max_response_tokens = 256
    training_defaults = WORD_PROBLEM_DEFAULTS

    def queries(self, split: str) -> Sequence[Query]:
        """Return the problems of a split, the user's own where given; see `Task.queries`.

        Raises:
            ValueError: for another split, or if reasoning-gym is not installed.
        """
        check_split(split)
        return self.user_queries(split) if self.data is not None else problems()[split]

    def prompt(self, role: str, query: Query, earlier_responses: Sequence[str]) -> str:
        """Return worked example and question, with what the role may read; see `Task.prompt`."""
        return word_problem(query, earlier_responses)


@lru_cache(maxsize=1)
def problems() -> Mapping[str, tuple[Query, ...]]:
    """Draw the problems of all splits; no text is twice among them.

    Raises:
        ValueError: if reasoning-gym is not installed.
    """
    gym = optional("reasoning_gym", "gsm-symbolic", "task 'gsm_symbolic'")
    found: dict[str, tuple[Query, ...]] = {}
    taken: set[str] = set()
    for split, seed in SEEDS.items():
        items = gym.create_dataset("gsm_symbolic", size=SIZES[split], seed=seed)
        chosen: dict[str, Query] = {}
        for item in items:
            text = item["question"].strip()
            # A few templates give answers such as -1 years or 2937.5; all are single numbers.
            if text not in taken and extract_number(item["answer"]) is not None:
                solution = item["metadata"]["answer_cot"]
                chosen.setdefault(text, Query(text, item["answer"], {"solution": solution}))
        found[split] = tuple(chosen.values())
        taken |= chosen.keys()
    return found
