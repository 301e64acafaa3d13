import time

from slurm.attempt import JobFile
from slurm.inside.place import ends_at, make_job, read_place

JOB_FILE = JobFile(run="r", inputs={}, files={}, code={}, interface="eth7", minutes=10, tasks_per_node=1, cpus=3)
SLURM = {
    "SLURM_JOB_ID": "42",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_NODELIST": "mx[0-1]",
    "SLURM_CPUS_ON_NODE": "16",
    "SLURMD_NODENAME": "mx1",
}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "GROUP_WORLD_SIZE": "1"}


def test_slurm_tells_rank_world_node_and_cores(tmp_path):
    job = make_job(read_place(SLURM), JOB_FILE, tmp_path)
    assert (job.rank, job.world_size, job.local_rank, job.node, job.cpus) == (3, 4, 1, "mx1", 8)
    assert (job.job_id, job.restarts, job.interface) == ("42", 0, "eth7")
    assert read_place({**SLURM, "SLURM_CPUS_PER_TASK": "2"}).cpus == 2


def test_ranks_of_two_starts_of_one_job_never_meet(tmp_path):
    starts = [read_place({**SLURM, "SLURM_RESTART_COUNT": count}) for count in ("0", "1")]
    first, second = (make_job(place, JOB_FILE, tmp_path).rendezvous for place in starts)
    assert first != second
    assert "42" in first.name
    assert second.name.endswith("-1.json")


def test_a_batch_script_without_srun_is_one_process():
    place = read_place({"SLURM_JOB_ID": "42", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"})
    assert (place.starter, place.world_size) == ("hand", 1)


def test_torchrun_tells_its_ranks():
    place = read_place({**SLURM, **TORCHRUN})
    assert (place.starter, place.rank, place.world_size, place.node) == ("torchrun", 1, 2, "localhost")


def test_one_process_meets_nobody_and_has_no_end(tmp_path):
    job = make_job(read_place({}), JOB_FILE, tmp_path)
    assert (job.rank, job.world_size, job.rendezvous, job.ends_at, job.cpus) == (0, 1, None, None, 3)


def test_a_local_job_inside_an_allocation_is_local():
    place = read_place(
        {
            **SLURM,
            "SUBMITIT_EXECUTOR": "local",
            "SUBMITIT_LOCAL_JOB_ID": "9",
            "SUBMITIT_LOCAL_GLOBALID": "1",
            "SUBMITIT_LOCAL_LOCALID": "1",
            "SUBMITIT_LOCAL_NTASKS": "2",
        }
    )
    assert (place.starter, place.world_size, place.start) == ("submitit", 2, "local-9")


def test_the_end_is_that_of_the_allocation_and_not_counted_from_the_start_of_the_stage(fake_slurm):
    place = read_place(SLURM)
    assert ends_at(place, 10, {"SLURM_JOB_END_TIME": "1234"}) == 1234
    asked = time.mktime(time.strptime("2030-01-02T03:04:05", "%Y-%m-%dT%H:%M:%S"))
    assert ends_at(place, 10, {}) == asked


def test_without_scontrol_the_end_is_that_of_the_request(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ends_at(read_place(SLURM), 10, {"SLURM_JOB_START_TIME": "1000"}) == 1600
