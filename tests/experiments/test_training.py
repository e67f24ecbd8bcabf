"""Interrupted training goes on as if nothing had happened."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from quadjoint.experiments import nested_spheres, ou, sines
from quadjoint.experiments.files import write_whole
from quadjoint.experiments.timing import peak_memory
from quadjoint.experiments.training import Context, Diverged, Task, load, minibatches, train
from quadjoint.experiments.workers import Team

SMALL = [
    (nested_spheres, nested_spheres.Config(width=6, epochs=6, points=60, batch=20, test_points=10)),
    (sines, sines.Config(width=6, epochs=6, times=8)),
    (ou, ou.Config(width=4, epochs=4, starts=4, batch=2, test_starts=2, samples=5, times=6, end=1.0, step=0.1)),
]


class Stop(Exception):
    """Stands for a kill at the end of an epoch."""


def stopping_at(epoch: int):
    def progress(state):
        if state.done == epoch:
            raise Stop

    return progress


def curves(result: dict) -> dict:
    return {name: curve for name, curve in result["curves"].items() if not name.endswith("seconds")}


@pytest.mark.parametrize(("module", "config"), SMALL, ids=[m.NAME for m, _ in SMALL])
@pytest.mark.parametrize("method", ["direct", "gq", "discrete"])
def test_a_resumed_run_is_bit_identical(module, config, method, tmp_path):
    config = replace(config, method=method)
    torch.manual_seed(0)
    whole = module.run(config, Context())
    path = tmp_path / "run.pt"
    for epoch in (2, 3):  # interrupted twice
        torch.manual_seed(0)
        with pytest.raises(Stop):
            module.run(config, Context(checkpoint=path, progress=stopping_at(epoch)))
        assert 1 <= load(path)["epoch"] < epoch
    torch.manual_seed(99)  # the random state comes from the checkpoint, not from here
    resumed = module.run(config, Context(checkpoint=path))
    assert curves(resumed) == curves(whole)
    assert resumed["gradients"] == whole["gradients"]
    assert resumed["per_gradient"].get("accepted_steps") == whole["per_gradient"].get("accepted_steps")


def test_a_damaged_checkpoint_is_no_checkpoint(tmp_path):
    path = tmp_path / "run.pt"
    write_whole(path, partial(torch.save, {"epoch": 1, "x": torch.ones(100)}))
    content = path.read_bytes()
    for damaged in (b"", b"nonsense", content[: len(content) // 2]):
        path.write_bytes(damaged)
        assert load(path) is None
    path.write_bytes(content)
    assert load(path)["epoch"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["run.pt"]


def test_a_checkpoint_cannot_run_code(tmp_path):
    path = tmp_path / "run.pt"
    torch.save({"epoch": Evil(tmp_path / "ran")}, path)
    assert load(path) is None
    assert not (tmp_path / "ran").exists()


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def linear_task(**changes) -> Task:
    x = torch.linspace(-1, 1, 12)[:, None]
    data = (x, 3 * x)

    def loss(model, batch, generator):
        return nn.functional.mse_loss(model(batch[0]), batch[1]), None

    settings = {"lr": 0.05, "epochs": 30, **changes}
    return Task(nn.Linear(1, 1), loss, minibatches(data, 4), lambda model: {}, **settings)


def test_the_loop_minimises():
    result = train(linear_task(), Context())
    losses = result["curves"]["train_loss"]
    assert losses[-1] < 0.1 * losses[0]
    assert result["gradients"] == 30 * 3


def test_a_loss_that_is_no_number_ends_the_run_in_words():
    with pytest.raises(Diverged, match="the loss became inf in epoch 1"):
        train(linear_task(lr=1e30), Context())


def test_batches_are_a_permutation_that_differs_between_epochs():
    epoch = minibatches((torch.arange(10),), 4)
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.cat([b[0] for b in epoch(generator)]).tolist() for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(10)) and first != second


def test_shares_of_a_team_average_to_the_batch():
    batch = (torch.arange(15.0),)
    shares = [Team(rank, 2).share(batch) for rank in range(2)]
    assert sum(float(rows[0].mean()) * weight for rows, weight in shares) / 2 == pytest.approx(7.0)
    with pytest.raises(ValueError, match="2 rows cannot be shared by 3"):
        Team(0, 3).share((torch.arange(2.0),))


def test_peak_memory_counts_what_is_alive_together():
    def work():
        for _ in range(5):
            torch.zeros(1000).exp()  # two tensors at a time, released before the next turn

    assert peak_memory(work) == 2 * 4000
    assert peak_memory(lambda: [torch.zeros(1000) for _ in range(5)]) == 5 * 4000
