"""Counter-based draws: the same everywhere, by the law, and never shared between worlds."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from naive_gridworld import draw as naive_draw
from naive_gridworld import zipf_task
from scipy.stats import chisquare

from longtail import zipf
from longtail.worlds.random import STAGGER, TASK, TaskQueue, draw

LAW = zipf.law((10, 10), 2.0)
CPU = torch.device("cpu")

# (seed, world, episode, purpose) -> 53 bits. These numbers are part of every published result: they must never change.
GOLDEN = {
    (0, 0, 0, 0): 1167743916529920,
    (0, 0, 0, 1): 449639978318282,
    (0, 0, 1, 0): 5327303479396426,
    (0, 1, 0, 0): 3682867644489147,
    (1, 0, 0, 0): 7969478176095689,
    (-1, 31, 7, 0): 6707699327908205,
    (9223372036854775808, 5, 1000000000000, 1): 47407619357742,
    (123456789, 1023, 999, 0): 3217450907971934,
}


def queue(num_worlds: int, weights: np.ndarray = LAW, seed: int = 0, device: torch.device = CPU) -> TaskQueue:
    made = TaskQueue(num_worlds, weights, device)
    made.reset(seed)
    return made


def tasks(source: TaskQueue, episodes: int, chunk: int = 64) -> np.ndarray:
    """The tasks of each world's next episodes, [worlds, episodes]."""
    done_B = torch.ones(len(source.world_B), dtype=torch.bool, device=source.world_B.device)
    out = []
    for i in range(episodes):
        if i % chunk == 0:
            source.prepare(chunk)
        out.append(source.advance(done_B).cpu())
    return torch.stack(out, 1).numpy()


def clone(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in state.items()}


@pytest.mark.parametrize("counters", GOLDEN)
def test_golden_values(counters: tuple[int, int, int, int], device: str) -> None:
    seed, world, episode, purpose = counters
    made = draw(seed, torch.tensor(world, device=device), torch.tensor(episode, device=device), purpose)
    assert made.item() == GOLDEN[counters] == naive_draw(*counters)


def test_purposes_keep_their_numbers() -> None:
    assert (TASK, STAGGER) == (0, 1)


@given(st.integers(-(2**63), 2**64 - 1), st.integers(0, 2**20), st.integers(0, 2**40), st.integers(0, 9))
def test_draw_equals_integers_without_overflow(seed: int, world: int, episode: int, purpose: int) -> None:
    expected = naive_draw(seed, world, episode, purpose)
    assert 0 <= expected < 2**53
    assert draw(seed, torch.tensor(world), torch.tensor(episode), purpose).item() == expected
    signed = torch.tensor((seed + 2**63) % 2**64 - 2**63)  # a seed on the device, as the queue keeps it
    assert draw(signed, torch.tensor([[world]]), torch.tensor([episode]), purpose).item() == expected


@pytest.mark.gpu
def test_draws_and_tasks_are_equal_on_the_gpu() -> None:
    world, episode = torch.arange(512)[:, None], torch.arange(512)
    on_gpu = draw(7, world.cuda(), episode.cuda(), TASK)
    assert torch.equal(draw(7, world, episode, TASK), on_gpu.cpu())
    for law in (LAW, zipf.law((20, 20), 2.0, reverse=True), np.ones(3)):
        both = [tasks(queue(33, law, 5, device), 100) for device in (CPU, torch.device("cuda"))]
        assert (both[0] == both[1]).all()


def test_no_draw_is_shared_between_worlds_episodes_seeds_or_purposes() -> None:
    world, episode = torch.arange(64)[:, None], torch.arange(200)
    draws = [draw(seed, world, episode, purpose).ravel() for seed in range(8) for purpose in (TASK, STAGGER)]
    # Different in their upper 53 bits: so the 64-bit states differ as well.
    assert len(torch.cat(draws).unique()) == 64 * 200 * 8 * 2


def test_no_two_worlds_have_the_same_tasks() -> None:
    played = tasks(queue(256), 50)
    assert len(np.unique(played, axis=0)) == 256
    for shift in range(1, 4):  # nor the same ones a few episodes later
        assert len(np.unique(np.concatenate([played[:, shift:], played[:, :-shift]]), axis=0)) == 512


def test_tasks_equal_the_law_by_exact_fractions() -> None:
    made = queue(5, seed=11)
    played = np.concatenate([made.reset(11)[:, None], tasks(made, 40)], 1)
    for world, episode in itertools.product(range(5), range(41)):
        assert divmod(int(played[world, episode]), 10) == zipf_task(naive_draw(11, world, episode, TASK), 10, 10)


def test_tasks_do_not_depend_on_the_number_of_worlds_or_on_chunks() -> None:
    expected = tasks(queue(64), 60)
    for num_worlds, chunk in ((64, 1), (64, 7), (4, 60), (4, 64)):
        assert (tasks(queue(num_worlds), 60, chunk) == expected[:num_worlds]).all()


def test_tasks_do_not_depend_on_when_episodes_end() -> None:
    made, expected = queue(8), tasks(queue(8), 200)
    done_TB = torch.rand(200, 8, generator=torch.Generator().manual_seed(0)) < 0.3
    played: list[list[int]] = [[] for _ in range(8)]
    for t, done_B in enumerate(done_TB):
        if t % 20 == 0:
            made.prepare(20)
        task_B = made.advance(done_B)
        for world in torch.nonzero(done_B)[:, 0].tolist():
            played[world].append(int(task_B[world]))
    for world, sequence in enumerate(played):
        assert len(sequence) > 30 and sequence == expected[world, : len(sequence)].tolist()


LAWS = {
    "zipfian": LAW,
    "reversed": zipf.law((10, 10), 2.0, reverse=True),
    "uniform": zipf.law((10, 10), 2.0, mode="uniform"),
    "rare": zipf.law((10, 10), 2.0, mode="rare"),
    "gentle": zipf.law((7, 5), 0.5),
}


def p_value(played: np.ndarray, law: np.ndarray) -> float:
    """Chi-square of the tasks played; tasks with fewer than 5 expected episodes count as one."""
    seen, expected = np.bincount(played.ravel(), minlength=len(law)), law * played.size
    assert (seen[law == 0] == 0).all()
    small = expected < 5
    pooled = [np.append(counts[~small], counts[small].sum()) for counts in (seen, expected)]
    used = pooled[1] > 0
    return float(chisquare(pooled[0][used], pooled[1][used]).pvalue)


@pytest.mark.parametrize("name", LAWS)
def test_drawn_tasks_follow_the_law(name: str) -> None:
    assert p_value(tasks(queue(200, LAWS[name]), 1000, 1000), LAWS[name]) > 1e-3


def test_drawn_tasks_do_not_follow_another_law() -> None:
    assert p_value(tasks(queue(200), 1000, 1000), zipf.law((10, 10), 1.95)) < 1e-6


def test_resumed_queues_go_on_and_follow_the_law() -> None:
    expected, parts = tasks(queue(100, seed=3), 1000, 1000), []
    current = queue(100, seed=3)
    for _ in range(5):
        parts.append(tasks(current, 200, chunk=30))
        saved = clone(current.state_dict())
        current = queue(100, np.ones(100), seed=99)
        current.load_state_dict(saved)
    pooled = np.concatenate(parts, 1)
    assert (pooled == expected).all()
    assert p_value(pooled, LAW) > 1e-3


@pytest.mark.parametrize("name", ["seed", "episode", "thresholds"])
def test_every_entry_of_the_state_is_needed(name: str) -> None:
    made = queue(100, seed=3)
    tasks(made, 50)
    saved, expected = clone(made.state_dict()), tasks(made, 50)
    resumed = queue(100, np.ones(100), seed=99)
    saved[name] = resumed.state_dict()[name].clone()
    resumed.load_state_dict(saved)
    assert (tasks(resumed, 50) != expected).any()
    del saved[name]
    with pytest.raises(ValueError, match=f"saved state has no '{name}'"):
        resumed.load_state_dict(saved)


def test_new_weights_count_from_the_next_episode() -> None:
    made = queue(4)
    before = tasks(queue(4), 10)
    made.prepare(20)
    done_B = torch.tensor([True, True, False, False])
    assert (made.advance(done_B).numpy() == before[:, 0]).all()
    made.set_weights(np.eye(100)[17])
    assert (made.advance(done_B) == 17).all()
    made.set_weights(LAW)  # the draws are the same as ever: only the law had changed
    assert (made.advance(done_B).numpy() == [before[0, 2], before[1, 2], before[2, 0], before[3, 0]]).all()


def test_weights_per_world_and_pin() -> None:
    made = queue(3)
    laws = np.stack([LAW, LAW[::-1], np.eye(100)[42]])
    made.set_weights(laws)
    played = tasks(made, 200)
    for world, law in enumerate(laws):
        assert (played[world] == tasks(queue(3, law), 200)[world]).all()
    made.pin(np.array([99, 0, 7]))
    assert (tasks(made, 5) == [[99], [0], [7]]).all()
    assert made.reset(5).tolist() == [99, 0, 7]


def test_reset_starts_anew() -> None:
    made = queue(8, seed=2)
    expected = tasks(made, 30)
    made.reset(2)
    assert (tasks(made, 30) == expected).all()
    made.reset(3)
    assert (tasks(made, 30) != expected).any()


def test_errors() -> None:
    made = queue(3)
    with pytest.raises(RuntimeError, match="call prepare"):
        made.advance(torch.ones(3, dtype=torch.bool))
    for shape in ((99,), (2, 100), (3, 99), (1, 100), ()):
        with pytest.raises(ValueError, match=r"weights have shape .* must be \(100,\) for one law or \(3, 100\)"):
            made.set_weights(np.ones(shape))
    with pytest.raises(ValueError, match="at least one task must be possible"):
        made.set_weights(np.zeros(100))
    for pinned in ([0, 1], [0, 1, 100], [-1, 0, 1], [0.0, 1.0, 2.0], 5):
        with pytest.raises(ValueError, match=r"it must be 3 task ids of 0\.\.99, one per world"):
            made.pin(np.array(pinned))
    with pytest.raises(ValueError, match=r"saved 'episode' has shape \(4,\): it must be \(3,\)"):
        made.load_state_dict(queue(4).state_dict())
    with pytest.raises(ValueError, match=r"saved 'thresholds' has shape \(3, 5\): it must be \(3, 100\)"):
        made.load_state_dict(queue(3, np.ones(5)).state_dict())
