"""How fast a model is served, in the terms that users feel; `trivet bench` prints it.

The JSON of every benchmark is one object:

    benchmark   "latency" | "throughput" | "serve" | "startup" | "suite" | "interference"
    command     the command line
    machine     cpu, cores, isa, memory_bytes, system, python, trivet, torch, load_average (before the runs)
    config      what was asked: model, quantization, backend, num_threads, settings, workload, lengths, seeds
    FIGURES     at the top level, medians over the runs
    num_runs    measured runs; one more has warmed up
    spread      {figure: [smallest, largest]} over the runs
    failures    {cause: how often}, over all measured runs
    tokens_counted_by   "usage", or "arrivals: ..." where a server tells no count: an estimate

A suite has `mode` ("throughput": in process, "serve": over HTTP) and `scenarios: {NAME: {config, FIGURES,
num_runs, spread, failures, tokens_counted_by}}`, by the names of `trivet.bench.suite`; an interference
benchmark has `points`, one object for each step budget.

Figures (times in ms, rates per second; percentiles p50, p90, p99, linearly interpolated):

    output_tokens_per_s, total_tokens_per_s (prompt and output), requests_per_s
    goodput_requests_per_s        requests that kept every limit of --goodput; only where limits are given
    ttft_ms_p50 ...               from the moment at which the load wanted to send to the first token
    tpot_ms_p50 ...               of a request: mean time per token after the first
    itl_ms_p50 ...                between two arrivals of a stream, over all streams
    e2e_ms_p50 ...                to the last token
    send_lag_ms_p50 ...           how late the load itself sent, contained in the latencies above
    duration_s, num_requests, num_failed, num_short (fewer tokens than asked), prompt_tokens,
    cached_prompt_tokens, output_tokens
    prefill_tokens_per_s, decode_tokens_per_s   where one request has the machine for itself: prompt tokens
                                  by TTFT, and 1 / TPOT
    client_cpu_us_per_token       serve: CPU time of the load generator, microseconds per output token
    kv_waste_percent, kv_sequences_fit, kv_sequences_fit_contiguous,
    kv_sequences_running_peak     in process: `trivet.bench.kv_watch`
    load_s, peak_rss_bytes        of this process; serve: of the deployment's engines, where they are here
    ready_s, rss_bytes, rss_anonymous_bytes, rss_file_bytes, memory_NAME_bytes (the runner's own parts)
                                  startup: a real engine process from its start to READY, and what it holds
    startup_s, phase_NAME_s, rss_after_NAME_bytes, first_token_s
                                  startup: the same by phases, in a process of their own
    quiet_itl_ms_p50 ...          interference: ITL before prompts arrive; ttft and prefill are the prompts'
"""
