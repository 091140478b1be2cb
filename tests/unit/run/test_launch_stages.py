"""The stages of a launch, by the lines that trainers print."""

import pytest

from autotune.run.bundle_launch import LaunchStages, Stages
from autotune.training.rehearsal import RehearsalReply

SFT = (
    (9.0, "Loading weights: 100%"),
    (21.0, "{'loss': '8.934', 'grad_norm': '2.875', 'num_tokens': '2810', 'epoch': '0.3333'}"),
    (30.0, "{'loss': '8.749', 'grad_norm': '2.593', 'num_tokens': '7549', 'epoch': '0.6667'}"),
    (39.0, "{'loss': '8.636', 'grad_norm': '4.14', 'num_tokens': '8420', 'epoch': '1'}"),
    (40.5, "{'eval_loss': '8.574', 'eval_runtime': '1.242'}"),
    (41.0, "{'train_runtime': '30.11', 'train_loss': '8.773', 'epoch': '1'}"),
)
PPO = tuple((when, line.replace("'loss'", "'eps'")) for when, line in SFT if "'loss'" in line)


def heard_of(lines, ended):
    heard = []
    stages = Stages(lambda stage, seconds: heard.append((stage, round(seconds, 3))))
    launch = LaunchStages(stages, RehearsalReply(untimed=2, timed=4, sizes=None))
    for when, line in lines:
        launch.hear(when, line)
    if ended is not None:
        launch.ended(ended)
    return heard, stages.seconds


def test_every_stage_is_told_once_with_its_seconds():
    heard, seconds = heard_of(SFT, 43.0)
    assert heard == [
        ("worst_batch", 21.0),
        ("timed_steps", 18.0),
        ("evaluation", 1.5),
        ("save", 0.5),
        ("end", 2.0),
    ]
    assert sum(seconds.values()) == pytest.approx(43.0)


def test_a_launch_that_is_cut_short_tells_how_far_it_came():
    assert heard_of(SFT[:3], None)[0] == [("worst_batch", 21.0)]


def test_ppo_neither_evaluates_nor_says_that_it_saved():
    assert [stage for stage, _ in heard_of(PPO, 44.0)[0]] == ["worst_batch", "timed_steps", "end"]


def test_a_second_launch_counts_on():
    seen = []
    stages = Stages(lambda stage, seconds: seen.append(stage))
    for _ in range(2):
        launch = LaunchStages(stages, RehearsalReply(untimed=2, timed=4, sizes=None))
        launch.hear(*SFT[1])
    assert seen == ["worst_batch"] * 2
    assert stages.seconds == {"worst_batch": 42.0}
