"""The trust report: what has been proven of each kernel, from the output of the proofs themselves.

    python tests/trust

runs the proofs whose kernels have changed since they last ran, writes what they showed to
`docs/evidence/trust.json`, and `docs/trust.md` from that. No figure is typed by hand.

- `suites` names the tests that other projects' tests or recorded results have become;
- `texts` has a key for the PTX texts of each kernel: facts of other texts are stale;
- `observer` is a plugin of pytest, which sees what proofs show while they run;
- `jobs` are the proofs that are run, and what is kept of them;
- `page` is the page, and what is wrong with the evidence.
"""
