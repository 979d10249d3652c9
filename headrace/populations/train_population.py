"""population(): trains members at the same time. At fixed steps some copy better members and change their settings."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.algorithms.base import Algorithm
from headrace.core.cores import cores
from headrace.core.text import shortened
from headrace.core.types import EnvArgument, Json, Settings
from headrace.core.writing import writing
from headrace.policies.base import Policy
from headrace.populations import exploring, population_member
from headrace.populations.exploring import Mutations, Selection
from headrace.populations.population_member import Decision, Each, Interval, Outcome, Score, name_of
from headrace.populations.population_record import Record
from headrace.runs.run import LAST, load, lock
from headrace.runs.task_processes import Processes, no_question
from headrace.training.multi_agent import NOT_COMPARED
from headrace.training.plan import TrainPlan, saved_settings, settle

if TYPE_CHECKING:
    from headrace.parallel.cluster.connection import Settings as Cluster
    from headrace.populations.cluster_members import ClusterMembers
    from headrace.runs.task_threads import Threads

LIMITS = ("target_return", "max_seconds", "max_episodes")  # limits with which members would end at different steps
OWN = {  # settings that a population replaces -> what to do instead
    "resume": "the same call goes on with a population",
    "save_freq": "a population keeps checkpoints at its intervals",
    "log_folder": "give folder",
}


@dataclass(frozen=True)
class Member:
    """A member at the end: its run's folder, and its score and settings in the last interval."""

    number: int
    path: Path
    score: float
    settings: Json


@dataclass(frozen=True)
class Population:
    """The result of population()."""

    path: Path
    members: tuple[Member, ...]  # the best first; empty if it was interrupted
    signal: str = ""  # the signal that interrupted it

    @property
    def policy(self) -> Policy:
        """The last policy of the best member. Raises RuntimeError if the population was interrupted."""
        if not self.members:
            raise RuntimeError(f"{self.path} was interrupted ({self.signal}): the same call goes on with it")
        return load(self.members[0].path, which=LAST)

    def plot(self, output: str | Path | None = None) -> Path:
        """Plot scores, settings and copies of all members, and return the path of the image."""
        from headrace.populations import lineages  # which `import headrace` does not need

        return lineages.plot(self.path, output)


def population(
    algorithm: str | Algorithm | None = None,
    env: EnvArgument = None,
    *,
    mutate: Mapping[str, str],
    interval: int,
    members: int = 8,
    quantile: float = 0.2,
    resample: float = 0.25,
    score: Score = "training",
    jobs: int | None = None,
    together: bool = False,
    cluster: str | None = None,
    cluster_open: bool = False,
    folder: str | Path | None = None,
    each: Each | None = None,
    config: str | Path | None = None,
    watch: Callable[[str], None] | None = None,
    **options: Any,
) -> Population:
    """Population Based Training (Jaderberg et al. 2017, arXiv:1711.09846): train members with different settings.

        hr.population("ppo", "CartPole-v1", mutate={"learning_rate": "1e-5..1e-2"}, interval=20_000)

    After each interval of environment steps the lowest members continue as copies of the best: weights, optimizer,
    replay buffer and settings. The settings of a copy are changed. All random choices follow from seed and interval.

    mutate: settings and their ranges, "LOW..HIGH" (on a logarithmic scale from a ratio of 10 on), or values, "A,B,C".
    Members begin with values drawn from these. quantile: share of members that are replaced, and that are copied.
    resample: probability that a copy's setting is drawn again. Otherwise it is multiplied by 0.8 or 1.2, or moves to a
    neighbouring value. score: of a member, the mean return of the last `window` training episodes that ended in the
    interval, or an evaluation of `eval_episodes`.
    jobs: number of members trained at the same time, in processes that share the cores; 1 trains them one after another
    in this process. together: train them in threads of this process; jobs is then by default the number of cores; see
    docs/runs.md. cluster: train them as tasks of one core each on a Ray cluster, as in train(), all at the same time
    unless jobs is given. The nodes share the folder. cluster_open: as in train().
    folder: by default runs/populations/ALGORITHM-ENV. It has a run for each member, and population.jsonl. The same call
    continues a population that was interrupted or killed, with the same bits.
    interval: environment steps. A remainder of total_steps shorter than an interval is added to the last interval.
    each: called after each iteration of a member with its Training and the row, as the body of hr.Training.
    options: those of train(). total_steps counts each member's steps, and a member's seed is seed * members + its
    number. A `schedule` of the learning rate starts at a member's learning_rate, and follows the member's steps.
    A member whose process dies, or that raises an exception, such as for a NaN in its loss, is replaced too.
    watch: called with a line about each result and replacement.
    Raises ValueError for wrong settings, RuntimeError if all members have failed.
    """
    nodes = _cluster(cluster, cluster_open)
    jobs = _jobs(members, together, nodes) if jobs is None else jobs
    _check(members, interval, quantile, resample, jobs, score, options)
    if together and nodes is not None:
        raise ValueError(f"cluster={cluster!r} trains members in processes of its nodes: leave out together")
    if together and each is not None:
        raise ValueError("each is called from one thread at a time: leave out together")
    own = {name: x for name, x in options.items() if name != "agent_info"}
    plan = settle(algorithm, env, config, options.get("agent_info"), own)
    selection = Selection(quantile, resample, plan.config.seed)
    space = _space(plan, mutate, options)
    steps = plan.config.total_steps
    if steps is None or steps < interval:
        raise ValueError(f"an interval of {interval:,} steps is longer than total_steps, {steps}: give a shorter one")
    where = Path(folder) if folder is not None else Path("runs/populations") / _stem(plan)
    about = _about(plan, space, members, interval, selection, score, mutate)
    with writing(where, "the population"):
        where.mkdir(parents=True, exist_ok=True)
    where = where.absolute()
    given = {"progress": "none", **options, "target_return": None}
    task = Interval(0, where, plan.algorithm, plan.env, given, None, 0, False, score, each, config, together)
    with lock(where):
        record = Record(where)
        record.begin(about)
        how = (steps, jobs, watch or _silent, nodes)
        return _Populating(record, task, space, selection, members, interval, *how).run()


def _silent(line: str) -> None:
    """Report nothing."""


def _cluster(address: str | None, allowed_open: bool) -> Cluster | None:
    if address in (None, "none"):
        return None
    from headrace.parallel.cluster.connection import Settings  # which `import headrace` does not need

    return Settings(address, allowed_open)


def _jobs(members: int, together: bool, nodes: Cluster | None) -> int:
    """Default number of members at the same time."""
    if nodes is None:
        return cores() if together else 1
    return min(members, cores()) if nodes.address == "local" else members


def _check(
    members: int, interval: int, quantile: float, resample: float, jobs: int, score: str, options: Settings
) -> None:
    """Raise ValueError for wrong arguments."""
    if members < 2 or interval < 1 or jobs < 1:
        raise ValueError(f"members must be at least 2, interval and jobs at least 1: {members}, {interval}, {jobs}")
    if not 0 <= quantile <= 0.5 or not 0 <= resample <= 1:
        raise ValueError(f"quantile must be in 0 .. 0.5, and resample in 0 .. 1: {quantile}, {resample}")
    if score not in ("training", "evaluation"):
        raise ValueError(f"score must be 'training' or 'evaluation', got {score!r}")
    for name in (*LIMITS, *OWN):
        if options.get(name) is not None and (name in LIMITS or options[name]):  # a limit of 0 is one
            how = OWN.get(name, "members are compared at the same steps: give total_steps")
            raise ValueError(f"{name}={options[name]!r} is nothing for a population: {how}")


def _space(plan: TrainPlan, mutate: Mapping[str, str], options: Settings) -> Mutations:
    """Settings to change, with their ranges. Raises ValueError for settings that cannot change, or are options, too."""
    if both := {*mutate} & {*options}:
        raise ValueError(f"mutate names {', '.join(sorted(both))}: leave out the setting of that name")
    if plan.ready_env is not None:
        raise ValueError("a population makes environments for each member: give a name, or what makes one")
    if plan.config.self_play:
        raise ValueError(f"self_play=True is nothing for the members of a population: {NOT_COMPARED}")
    if not isinstance(plan.algorithm, str):
        raise ValueError("a population makes the algorithm for each member: give its name, such as 'ppo'")
    return exploring.mutations(mutate, plan.algorithm, plan.algorithm_config)


def _stem(plan: TrainPlan) -> str:
    """The name of the folder."""
    settings = saved_settings(plan, plan.config, plan.algorithm_config, None)
    return f"{plan.algorithm}-{settings['env']}".replace("/", "-").replace(":", "-")


def _about(
    plan: TrainPlan,
    space: Mutations,
    members: int,
    interval: int,
    selection: Selection,
    score: str,
    mutate: Mapping[str, str],
) -> Json:
    """The first row of the record."""
    settings = saved_settings(plan, plan.config, plan.algorithm_config, None)
    own = {"members": members, "interval": interval, "quantile": selection.quantile, "resample": selection.resample}
    others = {name: x for name, x in settings.items() if name not in {*space, *LIMITS, "log_folder", "progress"}}
    about: Json = json.loads(json.dumps({**own, "score": score, "mutate": dict(mutate), **others}))
    return about


class _Populating:
    """Trains the members of a population to its end, or to a signal."""

    def __init__(
        self,
        record: Record,
        task: Interval,
        space: Mutations,
        selection: Selection,
        number: int,
        every: int,
        steps: int,
        jobs: int,
        watch: Callable[[str], None],
        nodes: Cluster | None,
    ) -> None:
        self.nodes = nodes
        self.record, self.task, self.space, self.selection, self.watch = record, task, space, selection, watch
        self.folder, self.number, self.every, self.steps, self.jobs = task.folder, number, every, steps, jobs
        self.intervals = steps // every

    def run(self) -> Population:
        """Continue from the record."""
        if not self.record.decisions():
            settings = exploring.begin(self.space, self.number, self.selection)
            rows = [Decision(member, member, None, None, own).row() for member, own in enumerate(settings)]
            self.record.add({"interval": 0, "decisions": rows})
        with self._side_by_side() as workers:
            while (interval := len(self.record.decisions())) <= self.intervals:
                if signal := self._train(interval, workers):
                    self.watch(f"interrupted by {signal}: the same command goes on with {self.folder}")
                    return Population(self.folder, (), signal)
                self._decide(interval)
        self._clean_up(set())
        return Population(self.folder, self._ranked())

    def _side_by_side(self) -> Processes | Threads | ClusterMembers | AbstractContextManager[None]:
        """Make the processes, threads or nodes that train members at the same time; None: one after another."""
        jobs = min(self.jobs, self.number)
        if self.nodes is not None:
            from headrace.populations.cluster_members import ClusterMembers

            return ClusterMembers(self.nodes, jobs, self.folder)
        if self.task.together:
            from headrace.runs.task_threads import Threads  # which `import headrace` does not need

            return Threads(population_member.train, jobs, "member")
        return Processes(population_member.train, jobs, "member") if jobs > 1 else nullcontext()

    def _decided(self) -> list[Decision]:
        return [Decision.of(row) for row in self.record.decisions()[-1]]

    def _train(self, interval: int, workers: Processes | Threads | ClusterMembers | None) -> str:
        """Train the members without a result for an interval. Returns the signal that came."""
        known, tasks = self.record.results(interval), list[Interval]()
        for decision in self._decided():
            if decision.member not in known:
                decision.prepare(self.folder, self._seed(decision.member))
                tasks.append(self._task(interval, decision))
        self._clean_up({(d.member, name) for d in self._decided() for name in (d.start, d.own)})
        if workers is None:
            for task in tasks:
                outcome = population_member.train(task)
                self._note(interval, outcome)
                if outcome.signal:
                    return outcome.signal
            return ""

        def done(number: int, outcome: Outcome | None, signal: str) -> None:
            killed = Outcome(tasks[number].member, signal=signal, failed="" if signal else "its process was killed")
            self._note(interval, outcome or killed)

        return workers.run(((task, no_question) for task in tasks), done)

    def _task(self, interval: int, decision: Decision) -> Interval:
        """A member's training in an interval."""
        begins, seed = decision.start is None, self._seed(decision.member)
        until = self.steps if interval == self.intervals else interval * self.every
        return replace(
            self.task,
            member=decision.member,
            folder=self.folder / name_of(decision.member),
            settings={**self.task.settings, **decision.settings, "seed": seed} if begins else decision.settings,
            start=decision.start,
            until=until,
            last=interval == self.intervals,
        )

    def _seed(self, member: int) -> int:
        return self.selection.seed * self.number + member

    def _note(self, interval: int, outcome: Outcome) -> None:
        """Write a result to the record, unless a signal came first."""
        if outcome.signal:
            return
        if outcome.score is None and not outcome.failed:
            raise ValueError(
                f"no episode of member {outcome.member} has ended in interval {interval}: give a longer interval, or "
                "score='evaluation'"
            )
        self.record.add({"interval": interval, "member": outcome.member, **outcome.row()})
        said = f"has failed: {shortened(outcome.failed)}" if outcome.failed else f"score {outcome.score:.4g}"
        self.watch(f"interval {interval} of {self.intervals}, member {outcome.member}: {said}")

    def _decide(self, interval: int) -> None:
        """Write the decisions on how members continue to the record."""
        before, results = self._decided(), self.record.results(interval)
        scores = [results[member].get("score") for member in range(self.number)]
        if not any(score is not None for score in scores):
            raise RuntimeError(f"all members have failed in interval {interval}, the first: {results[0]['failed']}")
        settings = [decision.settings for decision in before]
        found = exploring.decide(scores, settings, self.space, self.selection, interval)
        if interval == self.intervals:
            found = list(enumerate(settings))
        own = [before[i].start if scores[i] is None else f"step_{results[i]['steps']}" for i in range(self.number)]
        made = [
            Decision(member, source, own[source], own[member], values) for member, (source, values) in enumerate(found)
        ]
        self.record.add({"interval": interval, "decisions": [decision.row() for decision in made]})
        for decision in made:
            if decision.source != decision.member:
                why = "has failed and is" if scores[decision.member] is None else "is"
                values = ", ".join(f"{name} {_shown(x)}" for name, x in decision.settings.items())
                self.watch(f"member {decision.member} {why} replaced by a copy of member {decision.source}: {values}")

    def _clean_up(self, kept: set[tuple[int, str | None]]) -> None:
        """Remove checkpoints of past intervals."""
        rows = [row for decided in self.record.decisions() for row in decided]
        for member, name in {(row["member"], row[key]) for row in rows for key in ("start", "own")} - kept:
            if name is not None:
                shutil.rmtree(self.folder / name_of(member) / name, ignore_errors=True)

    def _ranked(self) -> tuple[Member, ...]:
        results, decided = self.record.results(self.intervals), self._decided()
        found = [
            Member(member, self.folder / name_of(member), row["score"], decided[member].settings)
            for member, row in results.items()
            if "score" in row
        ]
        return tuple(sorted(found, key=lambda member: (-member.score, member.number)))


def _shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
