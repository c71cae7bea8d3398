"""REINFORCE in plain torch on PettingZoo's own loop: both agents learn `target`.

Nothing but the game and torch. Run from the root of the repository: python -m examples.plain_loop
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import torch
from pettingzoo import AECEnv
from torch import Tensor, nn

from cory_env import cory_v0


class LanguageModel(nn.Module):
    """A small one: each token is read with those before it."""

    def __init__(self, vocabulary: int, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.read = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of each next token, [B, L, V], from tokens [B, L]."""
        return self.head(self.read(self.embed(tokens))[0])


@torch.no_grad()
def play(env: AECEnv, models: dict[str, LanguageModel]) -> dict[str, SimpleNamespace]:
    """Play the next episode of a token-level game; returns each agent's part in it."""
    # Its prompt and response together, how many of these tokens it wrote, its payoff and its score.
    nothing = {"tokens": None, "written": 0, "paid": 0.0, "score": 0.0}
    played = {agent: SimpleNamespace(**nothing) for agent in models}
    env.reset()
    for agent in env.agent_iter():
        observation, reward, terminated, truncated, info = env.last()
        own = played[agent]
        # What the agent earned since it last acted. When the pioneer acts for the last time nobody
        # has been paid: its payoff comes when it is asked once more, after the end.
        own.paid += reward
        if terminated or truncated:
            own.score = info["score"]
            env.step(None)
            continue
        seen = torch.as_tensor(observation[observation >= 0])  # padding is -1
        token = torch.multinomial(models[agent](seen[None])[0, -1].softmax(-1), 1)
        own.tokens = torch.cat([seen, token])
        own.written += 1
        env.step(int(token))
    return played


def loss(model: LanguageModel, batch: list[SimpleNamespace]) -> Tensor:
    """Minus advantage times log-probability of the response, less a bonus for its entropy."""
    tokens = nn.utils.rnn.pad_sequence([own.tokens for own in batch], batch_first=True)
    logprobs = model(tokens[:, :-1]).log_softmax(-1)
    chosen = logprobs.gather(-1, tokens[:, 1:, None]).squeeze(-1)
    ends = torch.tensor([[len(own.tokens)] for own in batch])
    left = ends - torch.arange(1, tokens.shape[1])  # tokens from here to the last, [B, L - 1]
    mask = (left > 0) & (left <= torch.tensor([[own.written] for own in batch]))  # the response
    paid = torch.tensor([own.paid for own in batch])
    advantage = (paid - paid.mean()) / (paid.std() + 1e-6)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    return -((advantage[:, None] * chosen + 0.05 * entropy) * mask).sum(-1).mean()


def mean_scores(env: AECEnv, models: dict[str, LanguageModel]) -> dict[str, float]:
    """Mean score of each agent over two passes through the 108 held-out queries."""
    episodes = [play(env, models) for _ in range(216)]
    return {agent: sum(e[agent].score for e in episodes) / len(episodes) for agent in models}


def main(iterations: int = 200, seed: int = 0) -> list[dict[str, float]]:
    """Train two agents, each paid the sum of the scores; returns their scores before and after."""
    torch.manual_seed(seed)
    game = {"task": "target", "action_level": "token", "role_schedule": "alternate"}
    env, held_out = cory_v0.env(**game), cory_v0.env(**game, split="validation")
    models = {a: LanguageModel(int(env.action_space(a).n)) for a in env.possible_agents}
    optimizers = {a: torch.optim.Adam(models[a].parameters(), lr=1e-2) for a in models}
    env.reset(seed=seed)  # only here: each later reset goes on to the next query
    held_out.reset(seed=seed)
    before = mean_scores(held_out, models)
    for _ in range(iterations):
        episodes = [play(env, models) for _ in range(32)]
        for agent, optimizer in optimizers.items():
            optimizer.zero_grad()
            loss(models[agent], [episode[agent] for episode in episodes]).backward()
            optimizer.step()
    after = mean_scores(held_out, models)
    print(*(f"{a}: score {before[a]:.2f} before, {after[a]:.2f} after" for a in models), sep="\n")
    return [before, after]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
