"""Training: the one place where worlds, acting, learning and counting close into a loop."""

import errno
import inspect
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from rich.console import Console
from rich.markup import escape
from torch import Tensor

from longtail import checkpoint, runfolder
from longtail.build import build
from longtail.config import RunConfig, fingerprint, resolve_device, resolve_precision
from longtail.engine.graph import Pacer, capture, keep_memory, make_repeatable
from longtail.impala.act import Rollout, act
from longtail.impala.learn import learn, make_optimizer, schedule
from longtail.interrupt import Interrupted, signals
from longtail.metrics import Counters, MetricsWriter, ProgressDisplay, Recent, Row, Speed, summarize
from longtail.recipes import recipe
from longtail.worlds import make


class NotFiniteError(FloatingPointError):
    """A tensor of the run holds a value that is not a finite number."""


class Trainer:
    """A run in memory: preallocated tensors, and one function that moves all of them one iteration on."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.device = resolve_device(config.device)
        self.dtype = resolve_precision(config.precision, self.device)
        make_repeatable(self.device)
        keep_memory()
        bootstrap = config.impala.bootstrap_time_limits
        self.world = make(config.world, config.impala.worlds, self.device, final_obs=bootstrap)
        self.world.reset(config.seed, stagger=True)
        self.generator = torch.Generator(self.device).manual_seed(config.seed)
        agent, method = build(config, self.world.obs_shape, self.world.num_actions, self.dtype, self.generator)
        self.agent, self.method = agent.to(self.device), method.to(self.device)
        self.rollout = Rollout.empty(self.world, self.agent, config.impala.unroll, bootstrap, keep_tape=True)
        self.optimizer = make_optimizer(self.agent, config.impala, self.method)
        self.counters = Counters(len(self.world.tasks), self.device, len(self.method.metrics))
        self._iterate: Callable[[], None] | None = None

    @property
    def step(self) -> int:
        return int(self.counters.iteration) * self.config.iteration_steps

    def iteration(self) -> None:
        """T steps of every world and one gradient step; waits for nothing on the host."""
        schedule(self.optimizer, self.config.impala, self.counters.iteration, self.config.iterations)
        self.act()
        learn_K = self.learn()
        self.counters.count(self.rollout, learn_K, *self.method.report())

    def act(self) -> None:
        with torch.no_grad():
            read = self.method.acting()
        act(self.agent, self.world, self.rollout, self.generator, self.config.impala.reward_clip, read)

    def learn(self) -> Tensor:
        """Algorithm 1, from `fm.add` on; the rollout and what the agent read are those of the last acting."""
        agent, rollout, method = self.agent, self.rollout, self.method
        method.observe(rollout)
        learn_K = learn(
            agent, rollout, self.optimizer, self.config.impala, method.learning(), method,
            lambda: method.loss(agent, rollout),
        )  # fmt: skip
        method.update()
        return learn_K

    def iterate(self) -> None:
        """One iteration, in the form this device runs fastest: called on a CPU, replayed as a graph on a GPU."""
        if self._iterate is None:
            as_graph = self.device.type == "cuda" and self.world.on_device
            state = self.state_dict()
            del state["generator"]
            self._iterate = capture(self.iteration, state.values(), [self.generator]) if as_graph else self.iteration
        self._iterate()

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that the next iteration depends on: live tensors, and the generator's state."""
        parts: dict[str, dict[str, Tensor]] = {
            "agent": dict(self.agent.state_dict()),
            "method": dict(self.method.state_dict()),
            "optimizer": self._optimizer_state(),
            "rollout": self.rollout.carry(),
            "world": self.world.state_dict(),
            "counters": self.counters.state_dict(),
        }
        state = {f"{part}.{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}
        return state | {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over a saved state, in place; one that does not fit this run is an error before anything changes."""
        live = self.state_dict()
        for name in sorted(live.keys() | state.keys()):
            if name not in live or name not in state:
                where = "the checkpoint has" if name in state else "this run has"
                raise ValueError(f"the checkpoint does not fit this run: only {where} a tensor {name}")
            if (live[name].shape, live[name].dtype) != (state[name].shape, state[name].dtype):
                raise ValueError(
                    f"the checkpoint does not fit this run: its {name} is {state[name].dtype} {[*state[name].shape]}, "
                    f"not {live[name].dtype} {[*live[name].shape]}"
                )
        self.world.load_state_dict(
            {name.removeprefix("world."): tensor for name, tensor in state.items() if name.startswith("world.")}
        )
        with torch.no_grad():
            for name, tensor in live.items():
                if not name.startswith("world.") and name != "generator":
                    tensor.copy_(state[name])
            # A world on the host cannot be saved within an episode: it begins a new one, before which nothing was done.
            self.rollout.last_action[-1].masked_fill_(self.world.first, self.agent.no_action)
            self.rollout.last_reward[-1].masked_fill_(self.world.first, 0)
        self.generator.set_state(state["generator"])

    def _optimizer_state(self) -> dict[str, Tensor]:
        parameters = [*self.agent.named_parameters(), *self.method.named_parameters("method")]
        named = ((name, self.optimizer.state[p]) for name, p in parameters)
        return {f"{name}.{key}": tensor for name, values in named for key, tensor in values.items()}

    def interface(self) -> dict[str, object]:
        """What it takes to build the agent again without a world."""
        return {"obs_shape": self.world.obs_shape, "num_actions": self.world.num_actions}

    def check_finite(self) -> None:
        """Stop at a value that is not finite, naming the tensor and when it was first seen."""
        bad = [n for n, t in self.state_dict().items() if t.is_floating_point() and not torch.isfinite(t).all()]
        if bad:
            first_bad = int(self.counters.first_bad)
            step = (first_bad + 1) * self.config.iteration_steps if first_bad >= 0 else self.step
            raise NotFiniteError(
                f"{bad[0]} is not finite, first seen at step {step:,}: nothing was saved since; "
                f"a lower impala.learning_rate or impala.grad_clip may help"
            )


def train(
    config: RunConfig | str, out: Path | str | None = None, stop_at: int | None = None, quiet: bool = False
) -> Path:
    """Train, or go on with, the run in `out`; returns its folder. The same call twice does nothing the second time.

    A world's name stands for its default recipe. `stop_at` saves and ends early, as an interruption would.
    """
    config = recipe(config) if isinstance(config, str) else config
    if not isinstance(config, RunConfig):
        raise ValueError(f"config is a {type(config).__name__}: it must be a RunConfig, or the name of a world")
    if stop_at is not None and stop_at < 0:
        raise ValueError(f"stop_at is {stop_at}: it must be at least 0")
    run = Path(out) if out is not None else runfolder.default_folder(config)
    runfolder.check(run, config)
    try:
        trainer = Trainer(config)
        try:
            with runfolder.claim(run, config):
                Session(trainer, run, Console(quiet=quiet, highlight=False, soft_wrap=True)).train(stop_at)
        finally:
            trainer.world.close()
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "allocate memory" not in str(error):
            raise
        sizes = f"impala.worlds is {config.impala.worlds} and impala.unroll {config.impala.unroll}"
        if config.memory:
            sizes += f", memory.capacity {config.memory.capacity} and memory.familiarity {config.memory.familiarity}"
        raise ValueError(f"{sizes}: they do not fit into memory, so lower one of them") from error
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ValueError(
            f"out is {str(run)!r}: the disk is full. The checkpoints there are as they were: make room, and the same "
            f"command goes on from the last one"
        ) from error
    return run


class Session:
    """One sitting at a run: from the checkpoint that it goes on from to the one that it ends with."""

    def __init__(self, trainer: Trainer, run: Path, console: Console) -> None:
        self.trainer, self.run, self.console, self.config = trainer, run, console, trainer.config
        self.name, self.earlier_seconds, self.saved_at = escape(str(run)), 0.0, -1
        self.place = runfolder.place(trainer.device, trainer.dtype)
        self.logged = trainer.counters.read()  # at the last row of metrics.jsonl
        found = checkpoint.load_own(
            run, fingerprint(self.config), lambda message: self.say(f"[yellow]{escape(message)}[/]")
        )
        if found:
            state, meta = found
            runfolder.check_place(run, meta, self.place)
            trainer.load_state_dict(state)
            self.earlier_seconds, self.saved_at, self.threads_before = meta["seconds"], trainer.step, meta["threads"]
            self.logged = {name: np.array(value) for name, value in meta["logged"].items()}
        self.step = trainer.step

    def say(self, text: str) -> None:
        self.console.print(text)

    def train(self, stop_at: int | None = None) -> None:
        """Train up to the run's last step, or to `stop_at`."""
        config, per_iteration = self.config, self.config.iteration_steps
        last = config.iterations if stop_at is None else min(config.iterations, -(-stop_at // per_iteration))
        runfolder.write_config(self.run, config)
        if self.saved_at >= 0 and self.step >= last * per_iteration:
            state = "finished" if self.step >= config.steps else f"past --stop-at {stop_at}"
            self.say(f"{self.name} is {state}: {self.step:,} steps. Evaluate it with: longtail eval {self.name}")
            return
        trainer = self.trainer
        if self.saved_at >= 0:
            self.say(f"going on from step {self.step:,} of {config.steps:,}")
            if (threads := self.place["threads"]) != self.threads_before:
                what = f"going on with {threads} threads, was {self.threads_before}"
                self.say(f"[yellow]{what}: results will differ in their last bits[/]")
        where = f"{config.impala.worlds} worlds, {trainer.device.type}, {str(trainer.dtype).removeprefix('torch.')}"
        self.say(f"training [bold]{config.method}[/] on [bold]{escape(config.world_label)}[/], {where} -> {self.name}")
        self.began_at = self.step
        self.session = runfolder.add_session(self.run, trainer.device, trainer.dtype, self.step)
        self.writer, self.speed = MetricsWriter(self.run, self.step), Speed(self.step)
        self.display = ProgressDisplay(self.console, self.run.name, self.step, config.steps)
        self.recent = Recent(trainer.world.tasks, self.logged, self.step)
        try:
            with signals(self.say) as received, self.display:
                self._loop(last, received)
        except BaseException:
            with suppress(OSError):  # a full disk has already been reported
                self._end()
            raise
        self._end()
        if received and self.step < config.steps:
            raise Interrupted(received[0], f"interrupted at step {self.step:,} and saved; the same command goes on")
        rate = (self.step - self.began_at) / max(self.speed.seconds(), 1e-9)
        self.say(f"step {self.step:,} saved, {rate:,.0f} steps/s. Evaluate it with: longtail eval {self.name}")

    def _loop(self, last: int, received: list[int]) -> None:
        config, per_iteration, pacer = self.config, self.config.iteration_steps, Pacer(self.trainer.device)
        for iteration in range(self.step // per_iteration, last):
            self.trainer.iterate()
            pacer()
            self.step = (iteration + 1) * per_iteration
            self.display.advance(self.step)
            if self.console.is_terminal and self.recent.is_due():
                self.display.show(*self.recent.look(self.trainer.counters.read(), self.step))
            if received or iteration + 1 == last:
                break
            if _crosses(self.step, per_iteration, config.log_every):
                self._log()
            if _crosses(self.step, per_iteration, config.checkpoint_every):
                self._save()
        if self.step > self.began_at:
            self._log()
        self._save()

    def _save(self) -> None:
        if self.step == self.saved_at:
            return
        self.trainer.check_finite()
        meta = {"run": fingerprint(self.config), "seconds": self._seconds(), **self.trainer.interface()}
        meta |= self.place | {"logged": {name: value.tolist() for name, value in self.logged.items()}}
        checkpoint.save_checkpoint(self.run, self.step, self.trainer.state_dict(), meta, self.config.keep_checkpoints)
        self.saved_at = self.step
        self.display.saved(self.step)

    def _log(self) -> None:
        now = self.trainer.counters.read()
        self.trainer.check_finite()
        row: Row = {"step": self.step, "time": self._seconds(), "steps_per_second": round(self.speed.lap(self.step), 1)}
        row |= summarize(self.logged, now, self.trainer.world.tasks, self.trainer.method.metrics)
        row |= self.trainer.method.inspect(self.trainer.rollout, self.trainer.world.tasks)
        row["learning_rate"] = float(f"{float(self.trainer.optimizer.param_groups[0]['lr']):.6g}")
        self.writer.write(row)
        rate, shares = self.recent.look(now, self.step)
        self.display.show(rate, shares)
        self.display.row(row, shares)
        self.logged = now

    def _seconds(self) -> float:
        """Of training, over all sessions."""
        return round(self.earlier_seconds + self.speed.seconds(), 3)

    def _end(self) -> None:
        try:
            self.writer.close()
        finally:
            runfolder.end_session(self.run, self.session, self.step, self.speed.seconds(), self._seconds())


def _crosses(step: int, per_iteration: int, every: int) -> bool:
    """The iteration that ended at `step` passed a multiple of `every`."""
    return step // every != (step - per_iteration) // every


class _Callable(ModuleType):
    """`longtail.train` is this file, and has to be the function as well."""

    __signature__ = inspect.signature(train)
    __call__ = staticmethod(train)


sys.modules[__name__].__class__ = _Callable
