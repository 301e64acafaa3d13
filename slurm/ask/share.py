"""Whether a stage has actors, and how the cores of this machine are shared among the processes of a local run."""

from slurm.attempt import Request


def has_actors(request: Request) -> bool:
    """Whether the stage is played by actors of their own."""
    return request.stage == "rl" and request.config["rl"]["mode"] == "asynchronous"


def has_evaluator(request: Request) -> bool:
    """Whether one more process scores the policies."""
    return has_actors(request) and request.config["rl"]["asynchronous"]["evaluate_every"] > 0


def local_cpus(request: Request, of: str = "") -> int:
    """Cores of a rank of a local job, or of one of its actors (`of` is actors): those asked for, or an equal share.

    Two cores have one learner and two actors on a thread each.
    """
    ranks = request.resources.tasks_per_node
    if has_actors(request):
        ranks += request.slurm.actors.count + has_evaluator(request)
    asked = request.slurm.resources(of or request.stage).cpus_per_task
    return asked or max(1, request.cpus // ranks)
