"""HCAM equals lists of what each episode has met: in acting, learning and playing, from nothing to forgetting."""

from collections.abc import Iterator

import pytest
import torch
from tiny import tiny, with_method
from torch import Tensor

from longtail.methods import Sizes
from longtail.methods.hcam import HCAM, Chunks, HCAMConfig, Heads
from longtail.train import Trainer

B, UNROLL, P, H = 3, 6, 6, 5
SIZES = Sizes((20, 20, 3), num_actions=2, embedding=3, hidden=H, worlds=B, unroll=UNROLL)
CONFIGS = {
    "some of them": HCAMConfig(chunk=2, chunks=3, chosen=2, key_dim=4),
    "all of them": HCAMConfig(chunk=3, chunks=4, chosen=4, key_dim=4),
    "long chunks": HCAMConfig(chunk=6, chunks=2, chosen=1, key_dim=4),
    "single steps": HCAMConfig(chunk=1, chunks=2, chosen=2, key_dim=4),
}
EACH = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


class NaiveHCAM:
    """One list of (clock, state) for each world: what its episode has met so far."""

    def __init__(self, heads: Heads, config: HCAMConfig, num_worlds: int) -> None:
        self.heads, self.config, self.clock = heads, config, 0
        self.met: list[list[tuple[int, Tensor]]] = [[] for _ in range(num_worlds)]

    def read(self, p_BP: Tensor, h_BH: Tensor, first_B1: Tensor) -> Tensor:
        m = []
        for b, met in enumerate(self.met):
            if first_B1[b]:
                met.clear()
            state_S = torch.cat([p_BP[b], h_BH[b]])
            m.append(self.read_one(state_S, met))
            met.append((self.clock, state_S.detach()))
        self.clock += 1
        return torch.stack(m)

    def read_one(self, state_S: Tensor, met: list[tuple[int, Tensor]]) -> Tensor:
        """The newest whole chunks of the clock; of these the best by the mean of their keys; softmax within each."""
        heads, c, now = self.heads, self.config, self.clock // self.config.chunk
        chunks = [[s for at, s in met if at // c.chunk == i] for i in range(now - c.chunks, now)]
        keys = [torch.stack([heads.key(s) for s in chunk]) for chunk in chunks if chunk]
        values = [torch.stack([heads.value(s) for s in chunk]) for chunk in chunks if chunk]
        if not keys:
            return heads.out(heads.value(0 * state_S))
        query_D = heads.query(state_S) / c.key_dim**0.5
        relevance = [query_D @ key_XD.mean(0) for key_XD in keys]
        best = sorted(range(len(keys)), key=lambda i: -float(relevance[i].detach()))[: c.chosen]
        shares = torch.stack([relevance[i] for i in best]).softmax(0)
        found = [(keys[i] @ query_D).softmax(0) @ values[i] for i in best]
        return heads.out(sum(share * m_D for share, m_D in zip(shares, found, strict=True)))


def build(config: HCAMConfig) -> HCAM:
    torch.manual_seed(0)
    method = HCAM(SIZES, config, None)
    with torch.no_grad():  # so that it matters what is chosen
        for p in method.parameters():
            p *= 3
    return method


def rollouts(count: int, share: float = 0.15) -> Iterator[list[tuple[Tensor, Tensor, Tensor]]]:
    """Steps (p, h, first); nothing says that the very first ones begin an episode, as in a staggered world."""
    g = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield [
            (
                torch.randn(B, P, generator=g),
                torch.randn(B, H, generator=g),
                torch.rand(B, 1, generator=g) < share,
            )
            for _ in range(UNROLL)
        ]


@EACH
def test_acting_and_learning_equal_lists(config: HCAMConfig) -> None:
    """Over rollout borders and resets; learning repeats what acting read, and its gradients are those of the lists."""
    method = build(config)
    naive, parameters = NaiveHCAM(method.heads, config, B), list(method.parameters())
    empty, full = 0, 0
    for steps in rollouts(12):
        with torch.no_grad():
            acting = method.acting()
            acted = [acting(*step) for step in steps]
        given = [(p.requires_grad_(), h.requires_grad_(), first) for p, h, first in steps]
        expected = [naive.read(*step) for step in given]
        learning = method.learning()
        learned = [learning(*step) for step in given]
        weights = [torch.randn(B, H, generator=torch.Generator().manual_seed(t)) for t in range(UNROLL)]
        inputs = [x for p, h, _ in given for x in (p, h)]
        gradients = [
            torch.autograd.grad(
                sum((m * w).sum() for m, w in zip(read, weights, strict=True)),  # type: ignore[arg-type]
                [*inputs, *parameters],
                materialize_grads=True,
            )
            for read in (expected, learned)
        ]
        for t in range(UNROLL):
            torch.testing.assert_close(acted[t], expected[t].detach(), rtol=0, atol=1e-5)
            torch.testing.assert_close(learned[t], expected[t], rtol=0, atol=1e-5)
            empty += int((acted[t] == 0).all(-1).sum())
            full += int((acted[t].abs() > 0.01).any(-1).sum())
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
        method.update()
    assert empty > 10 and full > 50


@EACH
def test_playing_equals_lists(config: HCAMConfig) -> None:
    """Of as many episodes as asked for, whatever the training worlds have met."""
    method = build(config)
    with torch.no_grad():
        for steps in rollouts(3):
            acting = method.acting()
            for step in steps:
                acting(*step)
            method.update()
        before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
        naive, reader = NaiveHCAM(method.heads, config, B), method.playing(B)
        for steps in rollouts(6, share=0.05):
            for p_BP, h_BH, first_B1 in steps:
                copy = reader.copy()
                expected_BH = naive.read(p_BP, h_BH, first_B1)
                for one in (copy, reader):  # a copy reads the same, and leaves the original as it was
                    torch.testing.assert_close(one(p_BP, h_BH, first_B1), expected_BH, rtol=0, atol=1e-5)
    assert all(torch.equal(tensor, before[name]) for name, tensor in method.state_dict().items())


def test_training_equals_lists() -> None:
    """With the agent's own p and h, while all weights change: keys and values are made anew from what is stored."""
    trainer = Trainer(with_method(tiny(), "hcam"))
    method = trainer.method
    assert isinstance(method, HCAM)
    naive, reads = NaiveHCAM(method.heads, method.config, 3), 0
    for _ in range(10):
        trainer.act()
        r = trainer.rollout
        assert r.tape is not None
        for t, moment in enumerate(r.tape.lstm.moments):
            h_BH, m_BH = moment.r_BR.split(trainer.agent.hidden_dim, -1)
            assert (h_BH[r.first[t]] == 0).all()
            with torch.no_grad():
                expected = naive.read(moment.p_BP, h_BH, r.first[t][:, None])
            torch.testing.assert_close(m_BH, expected, rtol=0, atol=1e-6)
            reads += int(expected.any())
        trainer.learn()
    assert reads > 20


def one_episode(method: HCAM, count: int) -> tuple[Chunks, list[Tensor]]:
    reader, made = method.playing(B), []
    with torch.no_grad():
        for steps in rollouts(count, share=0):
            made += [reader(*step) for step in steps]
    return reader, made


def test_an_empty_memory_reads_zero() -> None:
    """For a chunk and no longer; and after a reset until the running chunk is over."""
    config = CONFIGS["some of them"]
    reader, made = one_episode(build(config), 2)
    assert [bool(m.any()) for m in made[:3]] == [False, False, True]
    p_BP, h_BH = torch.ones(B, P), torch.ones(B, H)
    first_B1 = torch.tensor([[True], [False], [False]])
    with torch.no_grad():
        found = [reader(p_BP, h_BH, first_B1 if t == 0 else first_B1 & False).any(-1).tolist() for t in range(3)]
    assert found == [[False, True, True], [False, True, True], [True, True, True]]


def test_old_chunks_are_forgotten() -> None:
    """What lies further back than the newest chunks has no part in a read; the oldest of these has."""
    config = CONFIGS["all of them"]
    for steps_back, matters in ((12, True), (15, False)):
        changed = []
        for change in (0.0, 5.0):
            reader, _ = one_episode(build(config), 3)
            assert reader.t == config.chunk  # 18 steps: the next one begins a chunk
            reader.past_BLS[:, reader.before + reader.t - steps_back] += change
            with torch.no_grad():
                changed.append(reader(torch.ones(B, P), torch.ones(B, H), torch.zeros(B, 1).bool()))
        assert torch.equal(*changed) != matters


def test_an_episode_knows_nothing_of_the_one_before() -> None:
    """Not even in a chunk that both are in."""
    config, results = CONFIGS["some of them"], []
    for change in (0.0, 5.0):
        method = build(config)
        reader, made = method.playing(B), []
        with torch.no_grad():
            for i, (p_BP, h_BH, _) in enumerate(step for steps in rollouts(3, share=0) for step in steps):
                first_B1 = torch.full((B, 1), i == 5)  # in the middle of a chunk
                made.append(reader(p_BP + change * (i < 5), h_BH, first_B1))
        results.append(made)
    assert all(torch.equal(one, other) for one, other in zip(results[0][5:], results[1][5:], strict=True))
    assert not torch.equal(results[0][4], results[1][4]) and results[0][6].any()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"chunk": 0}, "hcam.chunk is 0: it must be at least 1"),
        ({"chunks": 0}, "hcam.chunks is 0: it must be at least 1"),
        ({"chosen": 0}, "hcam.chosen is 0: it must be at least 1"),
        ({"key_dim": 0}, "hcam.key_dim is 0: it must be at least 1"),
        ({"chunks": 4, "chosen": 5}, "hcam.chosen is 5: it must be at most hcam.chunks, 4"),
    ],
)
def test_bad_fields_are_named(fields: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HCAMConfig(**fields)


def test_a_chunk_that_does_not_fit_into_an_unroll() -> None:
    with pytest.raises(ValueError, match=r"hcam\.chunk is 4: it must divide impala\.unroll, 6"):
        HCAM(SIZES, HCAMConfig(chunk=4), None)
