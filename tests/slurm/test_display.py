import sys

from slurm.wait.display import Display, clock, pace, seconds_left

READING = {"done": 30, "total": 100, "first": 10, "unit": "steps", "message": "loss 1", "started": 100.0, "time": 110.0}


def test_the_rate_counts_what_this_process_has_done():
    assert pace(READING) == "2.0 steps/s, 0:35 left"
    assert seconds_left({**READING, "done": 10}) is None
    assert pace({**READING, "done": 10}) == "0.000 steps/s, -:-- left"


def test_time_is_told_in_the_fewest_parts():
    assert [clock(seconds) for seconds in (0, 61, 3723)] == ["0:00", "1:01", "1:02:03"]


def test_without_a_terminal_there_is_a_line_and_a_log_of_it(tmp_path, capsys):
    with Display("rl", tmp_path / "folder" / "terminal.log") as display:
        display.say("submitted")
        display.progress(READING)
        display.progress(READING)
    text = "rl: submitted\nrl: 30/100 steps, 2.0 steps/s, 0:35 left, loss 1\n"
    assert capsys.readouterr().out == text
    assert (tmp_path / "folder" / "terminal.log").read_text() == text


def test_words_with_brackets_are_shown_as_they_are(capsys):
    with Display("rl", None) as display:
        display.write("[red]x[/red] [1, 2]\n")
    assert capsys.readouterr().out == "[red]x[/red] [1, 2]\n"


def test_a_terminal_that_is_gone_stops_the_words_alone(monkeypatch, tmp_path):
    class Gone:
        encoding = "utf-8"

        def write(self, text):
            raise BrokenPipeError

        def flush(self):
            raise BrokenPipeError

        def isatty(self):
            return False

    monkeypatch.setattr(sys, "stdout", Gone())
    with Display("rl", tmp_path / "log") as display:
        display.say("one")
        display.say("two")
    assert (tmp_path / "log").read_text() == "rl: one\nrl: two\n"


def test_a_full_disk_stops_the_log_alone(tmp_path, capsys):
    (tmp_path / "log").symlink_to("/dev/full")
    with Display("rl", tmp_path / "log") as display:
        display.say("one")
        display.say("two")
    assert capsys.readouterr().out == "rl: one\nrl: two\n"
