"""The cost of one launch between XLA and the driver."""

from gpu_suite.tables import table

from evidence_pages.charts import Chart
from evidence_pages.cpu_page import suite_command
from evidence_pages.readings import Reading
from evidence_pages.wording import Page, cell, head, interval, number, paragraph, picture

__all__ = ["launch_page"]

_WITHOUT_SPREAD = """
This result has no spread: each time is the best of all rounds, or their mean for the handler in
Python beside a busy thread, and the picture has no error bars. So nothing can be said of
differences between idle and busy of some 0.1 µs.
"""
_WITH_SPREAD = """
Each time is the median over the rounds, with the quartiles in brackets; error bars are quartiles. A
call of the handler in Python beside a busy thread may wait 5 ms or may not, so that its mean is
given too.
"""
_ROWS = {
    "native_us": "oxijax's handler, idle",
    "native_busy_us": "oxijax's handler, busy",
    "ctypes_us": "handler in Python, idle",
    "ctypes_busy_us": "handler in Python, busy",
}


def launch_page(reading: Reading) -> Page:
    found = reading.content["launch"]
    chart = Chart(
        "One launch, without what XLA charges for any call",
        "µs of a launch",
        list(_ROWS.values()),
        {"launch": [interval(found, key) for key in _ROWS]},
        log=True,
    )
    lines = [
        "# The launch",
        "",
        *paragraph("""
            What one call of a kernel costs on the way from XLA to the driver. A compiled program
            makes chains of 100 calls on a CPU, through three handlers that launch nothing:
            oxijax's, which is written in C; one that is written in Python with ctypes; and one that
            returns at once. The time of the last is what XLA charges for any call, and is
            subtracted. What the driver and the GPU take for a launch is not in these figures.
        """),
        *paragraph("""
            "Busy" means beside another thread that runs Python all the time, as a data loader does.
            A handler in Python has to wait for the interpreter then, and one in C has not.
        """),
        *head(reading, suite_command(reading)),
        *paragraph(_WITH_SPREAD if "spread" in found else _WITHOUT_SPREAD),
        *picture("launch.svg", "Microseconds of a launch through a handler in C and one in Python"),
        *table(
            ["handler", "µs of a launch", "rounds"],
            [
                [
                    title,
                    cell(interval(found, key)),
                    found["rounds"][key] if "rounds" in found else "",
                ]
                for key, title in _ROWS.items()
            ],
        ),
    ]
    if "spread" in found:
        mean = number(found["ctypes_busy_us"])
        lines += paragraph(f"The mean of the handler in Python beside a busy thread is {mean} µs.")
    return Page(lines, {"launch.svg": chart})
