"""Side-by-side comparisons with peers, and the project's own costs; see benchmarks/README.md."""
