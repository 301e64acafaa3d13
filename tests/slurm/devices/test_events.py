from slurm.devices.events import is_fault, scan_log


def test_the_drivers_lines_are_found_in_a_log(answer):
    events = scan_log(answer("events.log"))
    assert [(event.source, event.severity, event.module, event.code) for event in events] == [
        ("METAX", "error", "SMI", None),
        ("METAX", "info", "SMI", None),
        ("MXCD", "error", "QUEUE", "EID 0x2317"),
        ("SDK", "fatal", "UMD", "EID 0x31ab"),
        ("METAX", "unknown", "PERIL", "EID 0x0042"),
        ("NVRM", "error", "", "Xid 79"),
    ]
    assert [is_fault(event) for event in events] == [True, False, True, True, True, True]
    assert (events[2].bus_id, events[2].message) == ("0000:9a:00.0", "queue stays full, pid 48211, ring 2")
    assert (events[4].bus_id, events[4].message) == (None, "")
    assert events[5].bus_id == "0000:3b:00"
    assert events[3].line.startswith("Oct  2 06:20:10 mx3 python[48211]: SDK.")


def test_lines_of_others_are_no_events():
    assert scan_log("kernel: metax: module loaded\nSDK 3.1 started\nMXCD. ERROR\nMETAX.B9A00.D0.SMI.ERROR\n") == []
