"""Shared parts of the operators, in packages by topic.

- `arguments`: checks and conversions of what users pass, and the errors they get.
- `primitive`: JAX primitives with all of their rules, made from one description.
- `calls`: one call of a kernel, and the plans kept for it.
- `launch`: the custom call, its handler, and the way from there to a loaded kernel.
- `gpu`: the CUDA driver, and data sheets.
- `tuning`: `oxijax.tune`.
- `xla`: building blocks of the XLA programs that references are.

`compat` has every private JAX API, and `process` the state of the process. A package imports only
those above it here, but that `primitive` uses `launch`.
"""
