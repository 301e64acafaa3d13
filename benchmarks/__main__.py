"""`python -m benchmarks [NAME]`: what `make bench` runs; `python -m benchmarks docs` writes the figures down."""

import sys

from benchmarks.frame import benchmark_names, run, write_down

if __name__ == "__main__":
    only = sys.argv[1] if len(sys.argv) > 1 else ""
    if only == "docs":
        write_down()
    elif only and only not in benchmark_names():
        sys.exit(f"no benchmark is called {only!r}; there are: {', '.join(benchmark_names())}")
    else:
        run(only)
