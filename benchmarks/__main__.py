"""`python -m benchmarks [NAME]`: what `make bench` runs."""

import sys

from benchmarks.frame import benchmark_names, run

if __name__ == "__main__":
    only = sys.argv[1] if len(sys.argv) > 1 else ""
    if only and only not in benchmark_names():
        sys.exit(f"no benchmark is called {only!r}; there are: {', '.join(benchmark_names())}")
    run(only)
