"""The contract suite: does a backend keep `trivet.contract`?

It needs no knowledge of the backend: cases drive its runner with batches of every shape and compare with
transformers in float32 on tiny random models. To test a backend of your own, install it (its entry point in
`trivet.plugins`) and run, in its environment, with pytest, torch and transformers installed:

    pytest -p trivet.contract_suite.plugin --pyargs trivet.contract_suite.cases --trivet-backend NAME

    --trivet-backend NAME      may be repeated; without it, every installed backend is tested
    --trivet-dtype f32         may be repeated; without it, f32 and bf16 where the device has them
    --trivet-option KEY=VALUE  an option of the backend, for all cases

A backend that is installed and finds no device is skipped with the reason of its probe. What is compared:
greedy ids are equal in float32; other dtypes agree as `trivet.engine.agreement` says. Some things a
backend may offer to be tested further:

    options = {"out_of_memory_steps": "4"}       collect(4) raises OutOfMemory (rule 9)
    options = {"num_threads": "3"}               chunks are tested at several numbers of threads (rule 2)
    options = {"nan_token": "7"}                 without weights: the token whose KV is NaN (rules 3 and 4)
    Backend.tested_options                       a sequence of options: every case runs with each of them;
                                                 `kv_cache_dtype` among them is the runner's setting
    Backend.reference_logits(spec, token_ids)    float32 [T, V], row t after the first t + 1 tokens: for a
                                                 backend without weights, the function that it computes
    Backend.reference_hidden(spec, token_ids)    float32 [T, hidden_size]: the same, where it pools

Where to read: `subject` (what a case is given), `driver` (runs batches without the engine core), `oracle`
and `sampling_oracle` (the right answers), `expect` (what is asserted), `cases` (one module a subject, each
name a sentence), `plain_runner` (the contract in NumPy, to read beside your own), `defects` (wrong variants
of it, to see that a case of yours can fail).
"""
