"""Does the grader grade? Asked at the start of every stage that relies on it."""

from collections.abc import Iterable

from stages.environments.base import BaseEnvironment, GraderError, Task

NUM_TASKS = 8


def self_test(environment: BaseEnvironment, tasks: Iterable[Task] = ()) -> None:
    """Check that reference answers earn 1 and absurd ones 0, on `tasks`, or on a few that the environment draws.

    Raises ValueError naming the task and what the grader said: its rewards would mean nothing.
    """
    posed = list(tasks) or [environment.reset(seed=seed)[1] for seed in range(NUM_TASKS)]
    for task in posed:
        check(environment, task, environment.reference(task), expected=1.0)
        for completion in environment.absurd(task):
            check(environment, task, completion, expected=0.0)


def check(environment: BaseEnvironment, task: Task, completion: str, expected: float) -> None:
    """Say one completion in every turn; ValueError when the reward of the episode is not as expected."""
    environment.reset(task=task)
    reward = 0.0
    try:
        for _ in range(environment.max_turns):
            _, earned, done, _ = environment.step(completion)
            reward += earned
            if done:
                break
    except GraderError as error:
        raise ValueError(f"self-test of the environment {environment.name}: {error}") from error
    if reward != expected:
        kind = "its own reference answer" if expected else "an absurd answer"
        raise ValueError(
            f"self-test of the environment {environment.name}: on the task {task['prompt']!r} (answer "
            f"{task['answer']!r}) the grader gives {kind} {completion!r} the reward {reward:g}, not {expected:g}; "
            "mend the row or choose another grader (environment.grader)"
        )
