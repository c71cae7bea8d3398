"""The plain PettingZoo loop: two agents that press keys at random play the toy game.

Nothing of this needs a model, torch or Tianshou. Run from the root of the repository:
python -m examples.plain_env_loop
"""

from __future__ import annotations

from pettingzoo import make

import cory_env  # noqa: F401  (registers the games)


def main(episodes: int = 2, seed: int = 0) -> list[dict[str, float]]:
    """Play episodes in which the roles alternate; returns what each agent was paid in each."""
    env = make("aec", "cory/target-v0", role_schedule="alternate", render_mode="human")
    for number, name in enumerate(env.possible_agents):
        env.action_space(name).seed(seed + number)
    paid = []
    for episode in range(episodes):
        # Only the first reset names a seed: each later one goes on to the next query.
        env.reset(seed=seed if episode == 0 else None)
        total = dict.fromkeys(env.possible_agents, 0.0)
        for agent in env.agent_iter():
            _, reward, terminated, truncated, _ = env.last()
            total[agent] += reward
            # After the end every agent is asked once more and answers None.
            env.step(None if terminated or truncated else env.action_space(agent).sample())
        paid.append(total)
    env.close()
    return paid


if __name__ == "__main__":
    main()
