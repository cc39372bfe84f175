"""Ways in which optimizers are used; each in a recording of its own. Prints the number of steps that training has."""

import gc
from collections.abc import Callable

import torch
from torch import nn

import muster.probe


def net() -> nn.Module:
    return nn.Linear(4, 4)


def backward(*modules: nn.Module) -> None:
    sum(m(torch.ones(2, 4)).square().mean() for m in modules).backward()


def one() -> None:
    m = net()
    optimizer = torch.optim.AdamW(m.parameters())
    for _ in range(5):
        backward(m)
        optimizer.step()


def two() -> None:
    m, n = net(), net()
    optimizers = [torch.optim.SGD(m.parameters(), 0.1), torch.optim.Adam(n.parameters())]
    for _ in range(5):
        backward(m, n)
        for optimizer in optimizers:
            optimizer.step()


def gan() -> None:
    generator, judge = net(), net()
    g, d = torch.optim.SGD(generator.parameters(), 0.1), torch.optim.SGD(judge.parameters(), 0.1)
    for n in range(6):
        backward(judge)
        d.step()
        if n % 3 == 0:
            backward(generator)
            g.step()


def in_backward() -> None:
    m = nn.Sequential(net(), net())
    optimizers = {p: torch.optim.SGD([p], 0.1) for p in m.parameters()}
    for p in m.parameters():
        p.register_post_accumulate_grad_hook(lambda q: optimizers[q].step())
    for _ in range(5):
        backward(m)


class Wrapper(torch.optim.Optimizer):
    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure: Callable[[], float] | None = None) -> None:
        self.inner.step()
        self.inner.step()


def wrapped() -> None:
    m = net()
    optimizer = Wrapper(torch.optim.SGD(m.parameters(), 0.1))
    for _ in range(5):
        backward(m)
        optimizer.step()


def scheduled() -> None:
    m = net()
    optimizer = torch.optim.SGD(m.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(5):
        backward(m)
        optimizer.step()
        scheduler.step()


def failing() -> None:
    m = net()

    class Broken(torch.optim.SGD):
        tries = 0

        def step(self, closure: Callable[[], float] | None = None) -> None:
            self.tries += 1
            if self.tries == 2:
                raise ValueError("once")
            super().step()

    optimizer = Broken(m.parameters(), 0.1)
    for _ in range(6):
        backward(m)
        try:
            optimizer.step()
        except ValueError:
            continue


def replaced() -> None:
    m = net()
    for _ in range(2):
        optimizer = torch.optim.SGD(m.parameters(), 0.1)
        for _ in range(3):
            backward(m)
            optimizer.step()
        del optimizer
        gc.collect()


def none() -> None:
    m = net()
    for _ in range(5):
        backward(m)
        with torch.no_grad():
            for p in m.parameters():
                p -= 0.1 * p.grad


muster.probe.stop()
for way in (one, two, gan, in_backward, wrapped, scheduled, failing, replaced, none):
    assert muster.probe.start(job=way.__name__, collect="torch")
    way()
    muster.probe.stop()
