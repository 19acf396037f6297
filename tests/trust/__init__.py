"""The trust report: what has been proven of each kernel, from the output of the proofs themselves.

    python tests/trust

runs the proofs whose sources have changed since they last ran, writes what they showed to
`docs/evidence/trust.json`, and `docs/trust.md` from that. No figure is typed by hand.

- `suites` names the tests that other projects' tests or recorded results have become;
- `sources` finds the files that a proof depends on, and `kernels` has hashes of the kernels' texts;
- `observer` is a plugin of pytest, which sees what proofs show while they run;
- `jobs` are the proofs that are run, which of them are stale, and what is kept of them;
- `page` is the page, and `evidence` what it is written from.
"""
