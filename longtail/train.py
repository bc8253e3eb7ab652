"""Training: the one place where worlds, acting, learning and counting close into a loop."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import torch
from rich.console import Console
from torch import Tensor

from longtail import checkpoint, runfolder
from longtail.agents.agent import Agent
from longtail.config import RunConfig, resolve_device, resolve_precision
from longtail.engine.graph import Pacer, capture, make_repeatable
from longtail.impala.act import Rollout, act
from longtail.impala.learn import learn, make_optimizer, schedule
from longtail.metrics import Counters, MetricsWriter, ProgressDisplay, Speed, summarize
from longtail.worlds import World, make


class NotFiniteError(Exception):
    """A tensor of the run holds a value that is not a finite number."""


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM, after the run was saved; `code` is what the process exits with."""

    def __init__(self, signum: int, message: str) -> None:
        super().__init__(message)
        self.code = 128 + signum


def build_agent(config: RunConfig, world: World, dtype: torch.dtype) -> Agent:
    """A new agent with the run's initial weights: made on the CPU, so that they are the same on every device."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        agent = Agent(world.obs_shape, world.num_actions, config.agent, dtype)
    return agent.to(world.device)


class Trainer:
    """A run in memory: preallocated tensors, and one function that moves all of them one iteration on."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.device = resolve_device(config.device)
        self.dtype = resolve_precision(config.precision, self.device)
        make_repeatable(self.device)
        bootstrap = config.impala.bootstrap_time_limits
        self.world = make(config.world, config.impala.worlds, self.device, final_obs=bootstrap)
        self.world.reset(config.seed, stagger=True)
        self.agent = build_agent(config, self.world, self.dtype)
        self.rollout = Rollout.empty(self.world, self.agent, config.impala.unroll, final_obs=bootstrap)
        self.optimizer = make_optimizer(self.agent, config.impala)
        self.counters = Counters(len(self.world.tasks), self.device)
        self.generator = torch.Generator(self.device).manual_seed(config.seed)
        self._iterate: Callable[[], None] | None = None

    @property
    def step(self) -> int:
        return int(self.counters.iteration) * self.config.iteration_steps

    def iteration(self) -> None:
        """T steps of every world and one gradient step; waits for nothing on the host."""
        c = self.config
        schedule(self.optimizer, c.impala, self.counters.iteration, c.iterations)
        act(self.agent, self.world, self.rollout, self.generator, c.impala.reward_clip)
        self.counters.count(self.rollout, learn(self.agent, self.rollout, self.optimizer, c.impala))

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
        for name in live.keys() | state.keys():
            if name not in live or name not in state or live[name].shape != state[name].shape:
                raise ValueError(f"the checkpoint does not belong to this run: tensor {name} is missing or differs")
        self.world.load_state_dict(
            {name.removeprefix("world."): tensor for name, tensor in state.items() if name.startswith("world.")}
        )
        with torch.no_grad():
            for name, tensor in live.items():
                if not name.startswith("world.") and name != "generator":
                    tensor.copy_(state[name])
        self.generator.set_state(state["generator"])

    def _optimizer_state(self) -> dict[str, Tensor]:
        named = ((name, self.optimizer.state[p]) for name, p in self.agent.named_parameters())
        return {f"{name}.{key}": tensor for name, values in named for key, tensor in values.items()}

    def interface(self) -> dict[str, object]:
        """What it takes to build the agent again without a world."""
        return {"obs_shape": self.world.obs_shape, "num_actions": self.world.num_actions}

    def check_finite(self) -> None:
        """Stop at a value that is not finite, naming the tensor and when it was first seen."""
        first_bad = int(self.counters.first_bad)
        if first_bad < 0:
            return
        bad = [n for n, t in self.state_dict().items() if t.is_floating_point() and not torch.isfinite(t).all()]
        when = (first_bad + 1) * self.config.iteration_steps
        name = next((name for name in bad if not name.startswith("counters.")), "the loss")
        raise NotFiniteError(f"{name} is not finite, first at step {when:,}: nothing was saved since")


def train(config: RunConfig, out: Path | str | None = None, stop_at: int | None = None, quiet: bool = False) -> Path:
    """Train, or go on with, the run in `out`; returns its folder. The same call twice does nothing the second time.

    `stop_at` saves and ends early, as an interruption would.
    """
    if stop_at is not None and stop_at < 0:
        raise ValueError(f"stop_at is {stop_at}: it must be at least 0")
    run = Path(out) if out is not None else runfolder.default_folder(config)
    console = Console(quiet=quiet, highlight=False)
    try:
        trainer = Trainer(config)
        with runfolder.claim(run, config):
            try:
                _train(trainer, run, stop_at, console)
            finally:
                trainer.world.close()
    except torch.OutOfMemoryError as error:
        raise ValueError(
            f"impala.worlds is {config.impala.worlds} and impala.unroll {config.impala.unroll}: the GPU ran out of "
            f"memory, so lower one of them"
        ) from error
    return run


def _train(trainer: Trainer, run: Path, stop_at: int | None, console: Console) -> None:
    config, per_iteration = trainer.config, trainer.config.iteration_steps
    found = checkpoint.load_newest(run, lambda message: console.print(f"[yellow]{message}"))
    earlier_seconds = 0.0
    if found:
        state, meta = found
        trainer.load_state_dict(state)
        earlier_seconds = meta["seconds"]
        console.print(f"going on from step {trainer.step:,} of {config.steps:,} in {run}")
    last = config.iterations
    if stop_at is not None:
        last = min(last, -(-stop_at // per_iteration))
    step = trainer.step
    if step >= config.steps:
        console.print(f"{run} is finished: {step:,} steps. Evaluate it with: longtail eval {run}")
        return
    console.print(
        f"training [bold]{config.method}[/] on [bold]{config.world.name}[/], {config.impala.worlds} worlds, "
        f"{trainer.device.type}, {str(trainer.dtype).removeprefix('torch.')} -> {run}"
    )
    manifest = runfolder.add_session(run, trainer.device, trainer.dtype, step)
    writer, speed, pacer = MetricsWriter(run, step), Speed(step), Pacer(trainer.device)
    before, saved_at = trainer.counters.read(), step if found else -1

    def save() -> None:
        nonlocal saved_at
        if step != saved_at:
            trainer.check_finite()
            meta = {"seconds": earlier_seconds + speed.seconds(), **trainer.interface()}
            checkpoint.save_checkpoint(run, step, trainer.state_dict(), meta, config.keep_checkpoints)
            saved_at = step
            display.saved(step)

    def log() -> None:
        nonlocal before
        now = trainer.counters.read()
        trainer.check_finite()
        row = {"step": step, "time": round(earlier_seconds + speed.seconds(), 3)}
        row |= {"steps_per_second": round(speed.lap(step), 1)} | summarize(before, now, trainer.world.tasks)
        row |= {"learning_rate": float(trainer.optimizer.param_groups[0]["lr"])}
        writer.write(row)
        display.row(row)
        before = now

    display = ProgressDisplay(console, run.name, step, config.steps)
    try:
        with _signals() as received, display:
            for iteration in range(step // per_iteration, last):
                trainer.iterate()
                pacer()
                step = (iteration + 1) * per_iteration
                display.advance(step)
                if received or iteration + 1 == last:
                    break
                if _crosses(step, per_iteration, config.log_every):
                    log()
                if _crosses(step, per_iteration, config.checkpoint_every):
                    save()
            log()
            save()
    finally:
        writer.close()
        runfolder.end_session(run, manifest, step, speed.seconds())
    if received:
        raise Interrupted(received[0], f"interrupted at step {step:,} and saved; the same command goes on from there")
    rate = (step - manifest["sessions"][-1]["from_step"]) / max(speed.seconds(), 1e-9)
    console.print(f"{run}: step {step:,}, {rate:,.0f} steps/s, saved. Evaluate it with: longtail eval {run}")


def _crosses(step: int, per_iteration: int, every: int) -> bool:
    """The iteration that ended at `step` passed a multiple of `every`."""
    return step // every != (step - per_iteration) // every


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collects the first Ctrl-C or SIGTERM, so that the iteration under way can end; a second one kills as usual."""
    received: list[int] = []
    previous: dict[int, object] = {}

    def handle(signum: int, _: FrameType | None) -> None:
        received.append(signum)
        for number, handler in previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            previous[number] = signal.signal(number, handle)
    except ValueError:
        pass  # only the main thread may handle signals; a notebook's worker thread trains without
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
