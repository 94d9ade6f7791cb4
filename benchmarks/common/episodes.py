"""Episodes of medium quality, recorded from linear policies that are found by the cross-entropy method.

Mannor, Rubinstein and Gat, "The Cross Entropy Method for Fast Policy Search" (2003). The search is stopped early, when
the mean return of its policies is medium, and each recorded episode is of another policy of the last population with
random actions mixed in.
"""

from dataclasses import dataclass
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from regard.data.formats.episodes import Episode

POPULATION, ELITE, MOST_ROUNDS = 24, 6, 40


@dataclass(frozen=True)
class Medium:
    """When the search is stopped, and how much noise the recorded episodes have."""

    env: str
    mean_return: float
    """The search is stopped when a population has this mean return."""
    num_episodes: int = 300
    epsilon: float = 0.5
    """The probability of a random action. With few of them, a model learns to imitate one of the policies."""


MEDIUM = {
    "cartpole": Medium("CartPole-v1", 180.0, num_episodes=500, epsilon=0.4),
    "acrobot": Medium("Acrobot-v1", -250.0),
}


def record_medium(path: Path, medium: Medium, *, seed: int = 0) -> list[float]:
    """Search, record episodes as JSON lines, and return their returns."""
    rng = np.random.default_rng(seed)
    env = gymnasium.make(medium.env, disable_env_checker=True)
    assert isinstance(env.observation_space, Box)
    assert isinstance(env.action_space, Discrete)
    num_features, num_actions = env.observation_space.shape[0], int(env.action_space.n)
    mean, std = np.zeros((num_actions, num_features + 1)), 1.0
    for _ in range(MOST_ROUNDS):
        policies = mean + std * rng.normal(size=(POPULATION, *mean.shape))
        returns = [play(env, policy, medium.epsilon, rng).rewards.sum() for policy in policies]
        if np.mean(returns) >= medium.mean_return:
            break
        best = policies[np.argsort(returns)[-ELITE:]]
        mean, std = best.mean(axis=0), best.std(axis=0) + 0.05
    drawn = mean + std * rng.normal(size=(medium.num_episodes, *mean.shape))
    episodes = [play(env, policy, medium.epsilon, rng) for policy in drawn]
    env.close()
    path.write_text("".join(f"{each.to_json()}\n" for each in episodes))
    return [float(each.rewards.sum()) for each in episodes]


def play(env: gymnasium.Env, policy: np.ndarray, epsilon: float, rng: np.random.Generator) -> Episode:
    """One episode of a linear policy with random actions mixed in."""
    observation, _ = env.reset(seed=int(rng.integers(1 << 31)))
    observations, actions, rewards = [], [], []
    while True:
        action = int(np.argmax(policy[:, :-1] @ observation + policy[:, -1]))
        if rng.random() < epsilon:
            action = int(rng.integers(len(policy)))
        observations.append(observation)
        actions.append(action)
        observation, reward, terminated, truncated, _ = env.step(action)
        rewards.append(float(reward))
        if terminated or truncated:
            return Episode(np.array(observations), np.array(actions), np.array(rewards), bool(terminated))
