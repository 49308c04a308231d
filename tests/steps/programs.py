"""What training programs do, as the events of one process: forty structures, and what is expected.

A program is a function of a `Tape`; `Expected` says what a step of it is, and how many it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torchdoctor.probe import step_log

TRAINS, EVALUATES, INFERS = 3, 0, 2  # flags of a forward: gradients, training mode
EXHAUSTED = step_log.EXHAUSTED


@dataclass(frozen=True)
class Event:
    """One event of the hooks; `thread` is 0 where it trains."""

    code: int
    ident: int = 0
    value: int = 0
    thread: int = 0


@dataclass
class Tape:
    """Records the events that a program makes."""

    events: list[Event] = field(default_factory=list)
    thread: int = 0

    def add(self, code: int, ident: int = 0, value: int = 0) -> None:
        self.events.append(Event(code, ident, value, self.thread))

    @contextmanager
    def within(self, begin: int, ident: int = 0) -> Iterator[None]:
        self.add(begin, ident)
        yield
        self.add(begin + 1, ident)

    def start(self, loader: int = 0) -> None:
        with self.within(step_log.LOADER_START_BEGIN, loader):
            pass

    def fetch(self, loader: int = 0, samples: int = 8) -> None:
        self.add(step_log.FETCH_BEGIN, loader)
        self.add(step_log.FETCH_END, loader, samples)

    def exhaust(self, loader: int = 0) -> None:
        self.fetch(loader, EXHAUSTED)

    def forward(self, flags: int = TRAINS, model: int = 0) -> None:
        self.add(step_log.FORWARD_BEGIN, model, flags)
        self.add(step_log.FORWARD_END, model, flags)

    def backward(self) -> None:
        with self.within(step_log.BACKWARD_BEGIN):
            pass

    def gradient(self, kind: int = 0) -> None:
        with self.within(step_log.GRADIENT_BEGIN, kind):
            pass

    def update(self, optimizer: int = 0) -> None:
        with self.within(step_log.OPTIMIZER_BEGIN, optimizer):
            pass

    def step(self) -> None:
        self.add(step_log.EXPLICIT_STEP, 0, 8)

    def learn(self, optimizer: int = 0, model: int = 0) -> None:
        self.forward(model=model)
        self.backward()
        self.update(optimizer)

    def closure(self, passes: int, optimizer: int = 0) -> None:
        with self.within(step_log.OPTIMIZER_BEGIN, optimizer):
            for _ in range(passes):
                self.forward()
                self.backward()

    def train(self, batches: int, loader: int = 0) -> None:
        for _ in range(batches):
            self.fetch(loader)
            self.learn()

    def evaluate(self, batches: int, loader: int = 1) -> None:
        self.start(loader)
        for _ in range(batches):
            self.fetch(loader)
            self.forward(EVALUATES)
        self.exhaust(loader)


@dataclass(frozen=True)
class Expected:
    """What a step is: its kind, of which loader or optimizer, and how many there are.

    `kind` None: no step of a training. `rule`: what the rule says where that is something else.
    `inferring`: of what `run` makes steps where nothing is trained, and `watch` does not.
    """

    kind: str | None
    steps: int = 0
    ident: int | None = None
    rule: str | None = None
    inferring: str | None = None


Program = Callable[[Tape], None]
PROGRAMS: dict[str, tuple[Program, Expected]] = {}


def _is(kind: str | None, steps: int = 0, ident: int | None = None, rule: str | None = None):
    return _named(Expected(kind, steps, ident, rule))


def _infers(kind: str, steps: int):
    return _named(Expected(None, steps, 0, "forward", inferring=kind))


def _named(expected: Expected):
    def named(program: Program) -> Program:
        PROGRAMS[program.__name__.replace("_", " ")] = program, expected
        return program

    return named


def _accumulation(updates: int, micro: int) -> Program:
    def program(tape: Tape) -> None:
        for _ in range(updates):
            for _ in range(micro):
                tape.forward()
                tape.backward()
            tape.update()

    return program


# The first three were told as backward passes by `run`, and as optimizer steps by `watch`.
for _updates, _micro in ((5, 8), (8, 8), (9, 3), (12, 2), (6, 40), (30, 5)):
    PROGRAMS[f"{_updates}x{_micro} updates and micro-batches"] = (
        _accumulation(_updates, _micro),
        Expected("optimizer", _updates, 0),
    )


@_is("loader", 120, 0)
def plain_loop(tape: Tape) -> None:
    for _ in range(4):
        tape.start()
        tape.train(30)
        tape.exhaust()


@_is("loader", 96, 0)
def accumulation_over_batches(tape: Tape) -> None:
    tape.start()
    for batch in range(96):
        tape.fetch()
        tape.forward()
        tape.backward()
        if batch % 4 == 3:
            tape.update()


@_is("loader", 20, 0)
def batches_of_an_update_fetched_ahead(tape: Tape) -> None:
    tape.start()
    for _ in range(20):
        for _ in range(4):
            tape.fetch()
        for _ in range(4):
            tape.forward()
            tape.backward()
        tape.update()


@_is("loader", 20, 0)
def batch_cut_into_micro_batches(tape: Tape) -> None:
    tape.start()
    for _ in range(20):
        tape.fetch()
        for _ in range(40):
            tape.forward()
            tape.backward()
        tape.update()


@_is("loader", 60, 0)
def one_batch_fetched_ahead(tape: Tape) -> None:
    tape.start()
    tape.fetch()
    for batch in range(60):
        tape.exhaust() if batch == 59 else tape.fetch()
        tape.learn()


@_is("loader", 120, 0)
def validation_after_each_epoch(tape: Tape) -> None:
    for _ in range(4):
        tape.start()
        tape.train(30)
        tape.exhaust()
        tape.evaluate(50)


@_is("loader", 100, 0)
def validation_within_the_epoch(tape: Tape) -> None:
    tape.start()
    for _ in range(10):
        tape.train(10)
        tape.evaluate(5)
    tape.exhaust()


@_is("loader", 60, 0)
def validation_at_the_start(tape: Tape) -> None:
    tape.evaluate(40)
    tape.start()
    tape.train(60)
    tape.exhaust()


@_is("loader", 90, 0)
def evaluation_over_the_training_loader(tape: Tape) -> None:
    for _ in range(3):
        tape.start()
        tape.train(30)
        tape.exhaust()
        tape.evaluate(30, loader=0)


@_is("optimizer", 60, 0)
def evaluation_without_a_loader(tape: Tape) -> None:
    for _ in range(6):
        for _ in range(20):
            tape.forward(EVALUATES)
        for _ in range(10):
            tape.learn()


@_is("optimizer", 60, 0)
def own_batches_and_a_loader_for_validation(tape: Tape) -> None:
    for _ in range(6):
        for _ in range(10):
            tape.learn()
        tape.evaluate(5)


@_is("loader", 60, 0)
def gan_over_a_loader(tape: Tape) -> None:
    tape.start()
    for _ in range(60):
        tape.fetch()
        tape.learn(optimizer=0, model=0)
        tape.learn(optimizer=1, model=1)


@_is("optimizer", 60, 1)
def gan_without_a_loader(tape: Tape) -> None:
    for _ in range(60):
        tape.learn(optimizer=0, model=0)
        tape.learn(optimizer=1, model=1)


@_is("optimizer", 20, 1)
def five_critic_steps_to_one_of_the_generator(tape: Tape) -> None:
    for _ in range(20):
        for _ in range(5):
            tape.learn(optimizer=0)
        tape.learn(optimizer=1)


@_is("optimizer", 20, 0)
def generator_before_its_critics(tape: Tape) -> None:
    for _ in range(20):
        tape.learn(optimizer=0)
        for _ in range(5):
            tape.learn(optimizer=1)


@_is("optimizer", 40, 2)
def actor_critic_and_temperature(tape: Tape) -> None:
    for _ in range(40):
        tape.forward(EVALUATES)
        for optimizer in range(3):
            tape.learn(optimizer)


@_is("backward", 8 * 12)
def lbfgs(tape: Tape) -> None:
    for _ in range(8):
        tape.closure(12)


@_is("backward", 40 * 12)
def lbfgs_of_many_steps(tape: Tape) -> None:
    for _ in range(40):
        tape.closure(12)


@_is("backward", 5 * 50)
def lbfgs_of_few_long_steps(tape: Tape) -> None:
    for _ in range(5):
        tape.closure(50)


@_is("loader", 12, 0)
def lbfgs_over_a_loader(tape: Tape) -> None:
    tape.start()
    for _ in range(12):
        tape.fetch()
        tape.closure(20)


@_is("optimizer", 40, 0)
def closure_of_one_pass(tape: Tape) -> None:
    for _ in range(40):
        tape.closure(1)


@_is("optimizer", 40, 0)
def sharpness_aware_minimization(tape: Tape) -> None:
    for _ in range(40):
        tape.forward()
        tape.backward()
        tape.closure(1)


@_is("optimizer", 40, 1)
def optimizer_within_an_optimizer(tape: Tape) -> None:
    for _ in range(40):
        tape.forward()
        tape.backward()
        with tape.within(step_log.OPTIMIZER_BEGIN, 1):
            tape.update(0)


@_is("backward", 40)
def optimizer_in_backward(tape: Tape) -> None:
    for _ in range(40):
        tape.forward()
        with tape.within(step_log.BACKWARD_BEGIN):
            for parameter in range(6):
                tape.update(parameter)


@_is("loader", 40, 0)
def optimizer_in_backward_over_a_loader(tape: Tape) -> None:
    tape.start()
    for _ in range(40):
        tape.fetch()
        tape.forward()
        with tape.within(step_log.BACKWARD_BEGIN):
            for parameter in range(6):
                tape.update(parameter)


@_is("backward", 300)
def checkpointing_with_passes_within_a_pass(tape: Tape) -> None:
    for _ in range(300):
        tape.forward()
        with tape.within(step_log.BACKWARD_BEGIN):
            for _ in range(3):
                tape.backward()


@_is("backward", 300)
def updates_by_hand(tape: Tape) -> None:
    for _ in range(300):
        tape.forward()
        tape.backward()


@_is("backward", 300)
def gradients_without_a_backward(tape: Tape) -> None:
    for _ in range(300):
        tape.forward()
        tape.gradient()


@_is("optimizer", 40, 0)
def gradient_penalty(tape: Tape) -> None:
    for _ in range(40):
        tape.forward()
        tape.gradient(kind=2)
        tape.backward()
        tape.update()


@_is("optimizer", 96, 0)
def reinforcement_learning_with_rollouts(tape: Tape) -> None:
    for _ in range(6):
        for _ in range(40):
            tape.forward(INFERS)
        for _ in range(16):
            tape.learn()


@_is("optimizer", 40, 0)
def reinforcement_learning_one_update_an_episode(tape: Tape) -> None:
    for _ in range(40):
        for _ in range(30):
            tape.forward()
        tape.backward()
        tape.update()


@_is("optimizer", 200, 0)
def replay_memory_filled_first(tape: Tape) -> None:
    for _ in range(500):
        tape.forward(EVALUATES)
    for _ in range(200):
        tape.forward(EVALUATES)
        tape.learn()


@_is("optimizer", 300, 0)
def one_batch_for_ever(tape: Tape) -> None:
    tape.start()
    tape.fetch()
    for _ in range(300):
        tape.learn()


@_is("optimizer", 300, 0)
def a_hundred_updates_a_batch(tape: Tape) -> None:
    tape.start()
    for _ in range(3):
        tape.fetch()
        for _ in range(100):
            tape.learn()


@_is("optimizer", 600, 0)
def many_updates_a_batch_of_many(tape: Tape) -> None:
    """From the twentieth batch on these were steps by batches, before by updates."""
    tape.start()
    for _ in range(30):
        tape.fetch()
        for _ in range(20):
            tape.learn()


@_is("loader", 30, 0)
def inner_steps_of_meta_learning(tape: Tape) -> None:
    tape.start()
    for _ in range(30):
        tape.fetch()
        for _ in range(5):
            tape.learn(optimizer=1)
        tape.learn(optimizer=0)


@_is("loader", 40, 5)
def two_loaders_zipped(tape: Tape) -> None:
    tape.start(5)
    tape.start(2)
    for _ in range(40):
        tape.fetch(5)
        tape.fetch(2)
        tape.learn()


@_is("loader", 40, 0)
def two_loaders_in_turns(tape: Tape) -> None:
    tape.start(0)
    tape.start(1)
    for _ in range(40):
        tape.train(1, loader=0)
        tape.train(1, loader=1)


@_is("loader", 120, 0)
def teacher_and_student(tape: Tape) -> None:
    tape.start()
    for _ in range(120):
        tape.fetch()
        tape.forward(EVALUATES, model=1)
        tape.learn()


@_is("optimizer", 60, 0)
def two_models_with_one_optimizer(tape: Tape) -> None:
    for _ in range(60):
        tape.forward(model=0)
        tape.forward(model=1)
        tape.backward()
        tape.update()


@_is("explicit", 30)
def explicit_steps(tape: Tape) -> None:
    tape.start()
    for _ in range(30):
        tape.train(3)
        tape.step()


@_is("explicit", 10)
def explicit_steps_of_many_batches(tape: Tape) -> None:
    tape.start()
    tape.train(3)
    tape.step()
    for _ in range(9):
        tape.train(30)
        tape.step()


@_is("loader", 60, 0)
def compiled_steps_without_forwards(tape: Tape) -> None:
    """A compiled module's call is not hooked."""
    tape.start()
    for _ in range(60):
        tape.fetch()
        tape.backward()
        tape.update()


@_is("optimizer", 60, 0)
def graphs_replayed(tape: Tape) -> None:
    for _ in range(60):
        tape.backward()
        tape.update()


@_is("loader", 60, 0)
def ddp_with_accumulation(tape: Tape) -> None:
    """`no_sync` for three of four batches; gradients are exchanged within the fourth backward."""
    tape.start()
    for batch in range(60):
        tape.fetch()
        tape.forward()
        tape.backward()
        if batch % 4 == 3:
            tape.update()
    tape.exhaust()


@_is("optimizer", 60, 0)
def first_updates_skipped_by_the_scaler(tape: Tape) -> None:
    for _ in range(4):
        tape.forward()
        tape.backward()
    for _ in range(60):
        tape.learn()


@_is("optimizer", 60, 0)
def batches_fetched_by_another_thread(tape: Tape) -> None:
    tape.start()
    for _ in range(60):
        tape.thread = 1
        tape.fetch()
        tape.thread = 0
        tape.learn()


@_is("optimizer", 60, 0)
def checkpoints_computed_again_in_a_thread_of_autograd(tape: Tape) -> None:
    for _ in range(60):
        tape.forward()
        with tape.within(step_log.BACKWARD_BEGIN):
            tape.thread = 1
            for _ in range(40):
                tape.backward()
            tape.thread = 0
        tape.update()


@_infers("forward", 200)
def forward_only_loop(tape: Tape) -> None:
    for _ in range(200):
        tape.forward(EVALUATES)


@_infers("loader", 200)
def inference_over_a_loader(tape: Tape) -> None:
    tape.start()
    for _ in range(200):
        tape.fetch()
        tape.forward(EVALUATES)
    tape.exhaust()


@_infers("forward", 300)
def tokens_generated(tape: Tape) -> None:
    for _ in range(10):
        for _ in range(30):
            tape.forward(EVALUATES)


@_infers("forward", 100)
def encoder_and_decoder_in_turns(tape: Tape) -> None:
    for _ in range(100):
        tape.forward(EVALUATES, model=0)
        tape.forward(EVALUATES, model=1)
