"""The gym: what it counts, and how the tuner's learner does in small jobs."""

from __future__ import annotations

import numpy as np
import pytest

from hocket.tuner import gym
from hocket.tuner.gym import UCB, Fixed, Job, Neighbour, Noise, Tuned, World, dealt, flipping, play
from hocket.tuner.learner import Choice, Reason

SECONDS = np.array([[1.0, 0.8, 1.3, 1.6, 0.9], [2.0, 1.9, 1.2, 3.0, 2.4]]) * 1e-4
"""Of two keys."""
PREDICTED = SECONDS * np.array([1.0, 1.1, 0.9, 1.2, 0.85])


def job(noise: Noise | None = None, neighbour: Neighbour | None = None) -> Job:
    names = tuple(f"arm {n}" for n in range(5))
    given = noise or Noise()
    return Job(
        "small", ("a", "b"), names, SECONDS[None], PREDICTED, near=((1,), (0,)), noise=given, neighbour=neighbour
    )


def test_regret_is_what_is_lost_against_the_fastest_arm_of_each_call() -> None:
    world = World(job(Noise(switch=0)), 0, calls=1000)
    assert play(world, Fixed([1, 2])).regret == 0
    lost = play(world, Fixed([0, 2]))
    of_a = int((world.keys == 0).sum())
    assert lost.regret == pytest.approx(of_a * 0.2e-4 / world.oracle().sum())
    assert lost.regrets()[-1] == pytest.approx(lost.regret)


def test_another_noise_is_the_same_world() -> None:
    one, other = World(job(), 3, calls=500), World(job(), 3, noise=1, calls=500)
    assert (one.keys == other.keys).all()
    assert (one.true == other.true).all()
    assert (one.slowed != other.slowed).any()


def test_the_winner_flips() -> None:
    first, second, third = flipping(job()).seconds
    assert (second.argmin(axis=1) != first.argmin(axis=1)).all()
    assert (second.min(axis=1) == first.min(axis=1)).all()
    assert (third.argmin(axis=1) != second.argmin(axis=1)).all()


def test_a_neighbour_slows_its_keys_now_and_then() -> None:
    world = World(job(neighbour=Neighbour((1,), np.array([1.0, 1, 0, 1, 1]), 3.0, 100.0)), 0, calls=2000)
    assert (world.true[world.keys == 0] == SECONDS[0]).all()
    slow = world.true[world.keys == 1][:, 0] > 2.5e-4
    assert 0.2 < slow.mean() < 0.8
    assert (world.true[world.keys == 1][:, 2] == SECONDS[1, 2]).all()


def test_arms_are_dealt_as_often_as_they_should_be() -> None:
    choice = Choice(1, (0.25, 0.0, 0.125, 0.0), Reason.EXPLORE)
    for begin in (0, 1000, 123_456):
        arms = [dealt(choice, begin + run) for run in range(64)]
        assert abs(arms.count(0) - 16) <= 1
        assert abs(arms.count(2) - 8) <= 1
        assert arms.count(3) == 0


def test_the_learner_finds_the_fastest_arms_and_keeps_the_guard() -> None:
    for seed in range(3):
        world, policy = World(job(), seed, calls=6000), Tuned()
        played = play(world, policy)
        assert [policy.learner.choice(key).incumbent for key in (0, 1)] == [1, 2]
        assert played.regret < 0.05 < play(world, gym.default(world.job)).regret
        found = gym.guard(world, played, policy.incumbents, policy.settings)
        assert found.spent <= found.allowed


def test_the_learner_follows_flips() -> None:
    world = World(flipping(job(), calls=6000), 0, calls=6000)
    learned, table = play(world, Tuned()).regret, play(world, gym.offline_table(world)).regret
    assert learned < 0.5 * table


def test_ucb_finds_the_fastest_arms_too() -> None:
    world = World(job(), 0, calls=6000)
    arms = play(world, UCB()).arms[-1000:]
    keys = world.keys[-1000:]
    assert (arms[keys == 1] == 2).mean() > 0.6
