"""Faults for the CUDA backend, each with the test that has to find it; `run_mutants.py` plants them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {"trivet_cuda": ROOT / "backends/trivet_cuda", "trivet": ROOT / "platform/trivet"}


@dataclass(frozen=True)
class Mutant:
    """`before`, which stands once in the file, becomes `after`. A package is a folder of PACKAGES."""

    name: str
    file: str  # below backends/trivet_cuda, or platform/trivet where it begins with "trivet/"
    before: str
    after: str
    test: str  # of pytest

    @property
    def place(self) -> tuple[str, str]:
        """The package, and the file below it."""
        package, _, inner = self.file.partition("/")
        return (package, inner) if package in PACKAGES else ("trivet_cuda", self.file)

    def planted(self, source: str) -> str:
        """The file with the fault. Raises: ValueError where it cannot be planted."""
        count = source.count(self.before)
        if count != 1:
            raise ValueError(f"{self.name}: {self.before!r} stands {count} times in {self.file}")
        return source.replace(self.before, self.after)


INTERPRETED, PLAIN = "tests/cuda/interpreted", "tests/backends/trivet_cuda"
ATTENTION, ROWS = f"{INTERPRETED}/test_attention_kernels.py", f"{INTERPRETED}/test_row_kernels.py"
ENGINE, SELF_TEST = f"{INTERPRETED}/test_engine.py", f"{INTERPRETED}/test_self_test.py"
EXTEND, DECODE = (
    f"{ATTENTION}::test_new_tokens_over_a_cached_prefix",
    f"{ATTENTION}::test_one_query_a_sequence",
)
SPLITS = f"{ATTENTION}::test_any_number_of_splits_gives_the_same"
SPOILT = f"{ATTENTION}::test_what_is_not_a_number_spoils_its_own_sequence_alone"
FAR = f"{ATTENTION}::test_a_cache_of_more_than_two_gibibytes_is_reached"
TURNED, PRODUCT = (
    f"{ROWS}::test_heads_are_normed_and_turned",
    f"{ROWS}::test_a_product_with_a_quantised_matrix",
)
GRAPHS, RUNNER = f"{PLAIN}/test_graphs.py", f"{PLAIN}/test_runner.py"
MEMORY = f"{PLAIN}/test_memory_plan.py"
SAMPLER, DRAWN = f"{PLAIN}/test_device_sampler.py", "test_rows_are_drawn_as_by_the_reference"
QUANTISED = f"{INTERPRETED}/test_quantised_models.py"
RANKS = "tests/backends/trivet_ascend/test_ranks.py"
SHARDED = "tests/platform/runners/test_sharded_weights.py"

EXTEND_FILE, DECODE_FILE, SCORES = "kernels/extend.py", "kernels/decode.py", "kernels/scores.py"
WRITE, NORM, ROPE, MATMUL = (
    f"kernels/{name}.py" for name in ("kv_write", "rms_norm", "rope", "group_matmul")
)
SAMPLER_FILE, WEIGHTS = "device_sampler.py", "trivet/runners/sharded_weights.py"

KERNELS = (
    Mutant("no causal mask", EXTEND_FILE, "(tokens[None, :] <= positions[:, None])",
           "(tokens[None, :] >= 0)", f"{EXTEND}[float32]"),
    Mutant("causal off by one", EXTEND_FILE, "<= positions[:, None])", "<= positions[:, None] + 1)",
           f"{EXTEND}[float32]"),
    Mutant("window off by one", EXTEND_FILE, "> positions[:, None] - WINDOW)",
           ">= positions[:, None] - WINDOW)", f"{EXTEND}[window]"),
    Mutant("window begins too late", EXTEND_FILE, "first - WINDOW + 1, 0)", "first - WINDOW + 130, 0)",
           f"{EXTEND}[long window]"),
    Mutant("wrong query head", EXTEND_FILE, "kv_head * GROUP + rows % GROUP", "kv_head + rows % GROUP",
           f"{EXTEND}[float32]"),
    Mutant("decode window off by one", DECODE_FILE, "seq_len - WINDOW, 0)", "seq_len - WINDOW - 1, 0)",
           f"{DECODE}[window-4]"),
    Mutant("read past the end", DECODE_FILE, "is_there = tokens < stop", "is_there = tokens < stop + 1",
           f"{DECODE}[float32-1]"),
    Mutant("an empty split counts", DECODE_FILE, 'highest + tl.log2(divisor), float("-inf"))',
           "highest + tl.log2(divisor), 0.0)", f"{DECODE}[float32-4]"),
    Mutant("wrong base of the logarithm", DECODE_FILE, "highest + tl.log2(divisor)",
           "highest + tl.log(divisor)", f"{DECODE}[float32-4]"),
    Mutant("one split is left out", DECODE_FILE, "total += share", "total += share * (split > 0)",
           f"{DECODE}[float32-4]"),
    Mutant("many splits are left out", DECODE_FILE, "tl.static_range(NUM_SPLITS):\n        share",
           "tl.static_range(min(NUM_SPLITS, 16)):\n        share", f"{SPLITS}[32]"),
    Mutant("sums are not rescaled", SCORES, "sums * shrink[:, None] + share", "sums + share",
           f"{EXTEND}[float32]"),
    Mutant("totals are not rescaled", SCORES, "total * shrink + tl.sum", "total + tl.sum",
           f"{EXTEND}[float32]"),
    Mutant("natural exponential", SCORES, "return dots * (scale * LOG2_E)", "return dots * scale",
           f"{EXTEND}[float32]"),
    Mutant("soft cap forgotten", SCORES, "if SOFT_CAP > 0:", "if SOFT_CAP > 1000:", f"{EXTEND}[soft cap]"),
    Mutant("value scales forgotten", SCORES, "weights = weights * value_scales[None, :]",
           "weights = weights", f"{EXTEND}[int8 cache]"),
    Mutant("key scales forgotten", SCORES, "dots = dots * key_scales[None, :]", "dots = dots",
           f"{EXTEND}[int8 cache]"),
    Mutant("scales below what float16 holds", SCORES, "IS_INT8 and query.dtype == tl.float16", "False",
           f"{ATTENTION}::test_small_values_of_int8_do_not_vanish_in_float16"),
    Mutant("wrong slot stride", SCORES, "(tokens % BLOCK_SIZE) * slot_stride",
           "(tokens % BLOCK_SIZE) * head_stride", f"{EXTEND}[float32]"),
    Mutant("offsets of keys in 32 bits", SCORES, "other=0).to(tl.int64)", "other=0)", FAR),
    Mutant("offsets of writes in 32 bits", WRITE, "other=-1).to(tl.int64)", "other=-1)", FAR),
    Mutant("padding is written", WRITE, "is_real = slot >= 0", "is_real = slot >= -1",
           f"{ATTENTION}::test_padding_and_other_slots_stay_untouched"),
    Mutant("int8 is cut, not rounded", WRITE, "tl.floor(ratio + 0.5)", "tl.floor(ratio)",
           f"{ATTENTION}::test_what_is_written_is_what_was_given[int8 cache]"),
    Mutant("float8 is not clamped", WRITE,
           "v = tl.clamp(v.to(tl.float32), -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)",
           "v = v.to(tl.float32)", f"{ATTENTION}::test_a_value_beyond_float8_becomes_its_largest"),
    Mutant("float8 makes a number of NaN", WRITE,
           "v = tl.clamp(v.to(tl.float32), -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)",
           "v = tl.clamp(v.to(tl.float32), -448.0, 448.0)", f"{SPOILT}[float8-kernel]"),
    Mutant("int8 makes a number of NaN", WRITE, "/ 127.0 + tl.sum(x * 0.0, 1)", "/ 127.0",
           f"{SPOILT}[int8-kernel]"),
    Mutant("the sum is not normed", NORM, "values = rounded.to(tl.float32)", "values = values * 0.5",
           f"{ROWS}::test_the_sum_comes_before_the_norm"),
    Mutant("eps outside the root", NORM, "/ SIZE + eps)", "/ SIZE) + eps * 1000",
           f"{ROWS}::test_the_norm_of_rows_with_gaps_between_them"),
    Mutant("rotation the other way", ROPE, "first * c - second * s", "first * c + second * s", TURNED),
    Mutant("pairs are those of the other kind", ROPE, "if IS_INTERLEAVED:", "if not IS_INTERLEAVED:",
           TURNED),
    Mutant("keys by the queries' norm", ROPE, "is_q = heads < NUM_Q_HEADS", "is_q = heads < NUM_HEADS",
           TURNED),
    Mutant("gate and up change places", "kernels/swiglu.py", "(active * up)", "(gate * up)",
           f"{ROWS}::test_the_gate_is_applied"),
    Mutant("nibbles backwards", MATMUL, "tl.arange(0, 8) * 4", "(7 - tl.arange(0, 8)) * 4", PRODUCT),
    Mutant("offsets forgotten", MATMUL, "* scale[:, None, :] + offset[:, None, :]", "* scale[:, None, :]",
           PRODUCT),
    Mutant("a run of K is done twice", MATMUL, "start = split * steps * BLOCK_K",
           "start = 0 * steps * BLOCK_K", PRODUCT),
    Mutant("runs of K are not added", MATMUL, "out.sum(0)", "out[0]", PRODUCT),
)  # fmt: skip

RUNS = (
    Mutant("the largest bucket for each step", "graphs.py", "size = min((size", "size = max((size",
           f"{GRAPHS}::test_a_step_takes_the_smallest_bucket_that_holds_it"),
    Mutant("the smallest is captured first", "graphs.py", "sorted(sizes, reverse=True)", "sorted(sizes)",
           f"{GRAPHS}::test_the_largest_is_captured_first"),
    Mutant("padding writes to slot 0", "step_view.py", '{"kv_slots": -1}', '{"kv_slots": 0}',
           f"{GRAPHS}::test_nothing_of_the_step_before_is_left_in_the_padding"),
    Mutant("a step's arrays go into other memory", "graphs.py", "upload_into(bucket.buffer,",
           "upload_into(bucket.buffer.clone(),", f"{RUNNER}::test_a_captured_decode_gives_the_eager_tokens"),
    Mutant("a step's table goes into other memory", "graphs.py",
           "held = bucket.block_table[:num_seqs, : table.shape[1]]",
           "held = bucket.block_table[:num_seqs, : table.shape[1]].clone()",
           f"{RUNNER}::test_a_captured_decode_gives_the_eager_tokens"),
    Mutant("each bucket has a table of its own", "graphs.py",
           "self._table[:size]", "self._table[:size].clone()",
           f"{GRAPHS}::test_the_buffers_of_the_capture_stay_where_they_are"),
    Mutant("each bucket has arrays of its own", "graphs.py", "buffer = self._buffer[: len(host)]\n",
           "buffer = self._buffer[: len(host)].clone()\n",
           f"{GRAPHS}::test_the_buffers_of_the_capture_stay_where_they_are"),
    Mutant("tables of small buckets lie in arrays of large ones", "graphs.py", '"block_table": table}, size',
           '"block_table": self._buffer[-table.numel():].view(table.shape)}, size',
           f"{GRAPHS}::test_nothing_of_the_step_before_is_left_in_the_padding"),
    Mutant("the twin of decode is captured", "runner.py",
           "return self.ops.table.decode_attention is TWINS.decode_attention", "return False",
           f"{RUNNER}::test_the_twin_of_decode_is_not_captured_and_that_is_told"),
    Mutant("the stream is rounded", "cuda_ops.py", "self.table.add_rms_norm(residual, x,",
           "self.table.add_rms_norm(x, residual,",
           f"{RUNNER}::test_the_residual_stream_is_float32_in_every_type"),
    Mutant("a rank captures alone", "graphs.py", "if not have_all(size in self._buckets):",
           "if size not in self._buckets:", f"{GRAPHS}::test_a_size_that_another_rank_has_not_is_not_kept"),
    Mutant("angles of the capture", "runner.py", "        self.ops.forget_angles()\n", "",
           f"{RUNNER}::test_a_captured_decode_gives_the_eager_tokens"),
    Mutant("newest tokens are replaced, not written", "device_sampler.py",
           'newest.index_copy_(0, at["slots"].long(), drawn.tokens.index_select(0, at["rows"]))',
           'newest.index_copy(0, at["slots"].long(), drawn.tokens.index_select(0, at["rows"]))',
           f"{SAMPLER}::test_the_newest_token_of_a_sequence_that_only_scores_stays"),
    Mutant("an unseen token is padding", "runner.py",
           "torch.where(view.token_ids < 0, newest, view.token_ids)", "view.token_ids.clamp(min=0)",
           f"{RUNNER}::test_a_table_of_newest_tokens_that_is_replaced_after_the_capture_is_found"),
    Mutant("more than planned is taken", "runner.py", "            self._hold_to_plan()\n", "",
           f"{MEMORY}::test_a_step_that_takes_more_than_planned_is_refused"),
    Mutant("one prompt fills the warm-up", "trivet/runners/warm_up.py",
           "prompts = min(max_num_seqs, -(-max_num_batched_tokens // max_model_len))", "prompts = 1",
           f"{RUNNER}::test_more_tokens_than_one_sequence_has_are_measured"),
    Mutant("pooling waits", "pooled.py", "return host.copy_(sums, non_blocking=True)", "return sums.cpu()",
           f"{RUNNER}::test_what_is_pooled_is_not_waited_for"),
    Mutant("chunks begin at their second tile", "step_view.py", "counts, counts)) * tile_tokens",
           "counts, counts) + 1) * tile_tokens", f"{PLAIN}/test_step_view.py"),
    Mutant("Triton's words are not understood", "failures.py",
           "(CUDA error|Triton Error \\[CUDA\\]|CUDA driver error): (an",
           "(CUDA error|CUDA driver error): (an",
           f"{PLAIN}/test_device.py::test_an_error_after_which_nothing_works_ends_the_process"),
    Mutant("lack of memory ends the process", "failures.py",
           "    if is_out_of_memory(error):\n        return",
           "    if isinstance(error, torch.OutOfMemoryError):\n        return",
           f"{PLAIN}/test_device.py::test_lack_of_memory_ends_a_step_and_not_the_process"),
    Mutant("a tied head is not padded", WEIGHTS, 'if shard == "vocab" else 0', 'if False else 0',
           f"{SHARDED}::test_a_tied_head_gives_the_logits_of_the_whole_table"),
    Mutant("a bias is not padded", WEIGHTS, "F.pad(mine, (0, self._padding(parts[0], spans[0], shard)))",
           "mine", f"{SHARDED}::test_a_bias_is_padded_as_its_head"),
    Mutant("norms in the model's dtype", WEIGHTS, "vector_dtype or dtype, lay_out", "dtype, lay_out",
           f"{SHARDED}::test_norms_keep_the_bits_of_their_file"),
    Mutant("all scores at once", "twins.py", "step = max(1, MAX_SCORES //",
           "step = max(1 << 20, MAX_SCORES //", f"{ATTENTION}::test_twins_take_long_prompts_in_pieces"),
    Mutant("an error is over the largest of all", "trivet/runners/op_check.py",
           "errors = (found - wanted).abs().amax(-1) / wanted.abs().amax(-1).clamp(min=1e-6)",
           "errors = (found - wanted).abs().amax() / wanted.abs().amax().clamp(min=1e-6)",
           "tests/platform/runners/test_op_check.py::test_a_wrong_row_shows_beside_one_of_large_values"),
    Mutant("what is no number passes", "trivet/runners/op_check.py", "if error != error else error",
           "if False else error",
           "tests/platform/runners/test_op_check.py::test_what_is_no_number_has_failed"),
    Mutant("the cap is not reached", "op_cases.py", "size = max(1.0, shape.soft_cap / 2)", "size = 1.0",
           f"{SELF_TEST}::test_a_window_and_a_cap_of_the_model_are_really_reached[soft cap]"),
    Mutant("the window is not reached", "op_cases.py", "if 0 < self.window < self.max_model_len:",
           "if False:", f"{SELF_TEST}::test_a_window_and_a_cap_of_the_model_are_really_reached[window]"),
    Mutant("splits of no step", "self_test.py", "num_splits=tuple(sorted(splits))", "num_splits=(1,)",
           f"{SELF_TEST}::test_splits_are_those_of_the_steps_that_will_come"),
    Mutant("what is cached is taken", "device.py", "        torch.cuda.empty_cache()\n        free, _",
           "        free, _", f"{PLAIN}/test_device.py::test_what_the_pool_of_graphs_holds_is_not_free"),
    Mutant("what other ranks notice is not told", "trivet/runners/ranks.py",
           "told = ((0, self._inner.notices()), *((rank.index, rank.notices) for rank in self._ranks))",
           "told = ((0, self._inner.notices()),)",
           f"{RANKS}::test_what_other_ranks_notice_is_told_with_their_numbers"),
    Mutant("a file that ranks cannot cut is taken", "trivet/runners/model_matrices.py", "if width % block:",
           "if False:",
           "tests/platform/runners/test_slices.py::"
           "test_columns_that_are_no_whole_blocks_of_a_file_are_refused_by_name"),
    Mutant("numbers count by the bus whatever CUDA was told", "visibility.py",
           "environment.get(ORDER) != BY_BUS", "False",
           f"{PLAIN}/test_nvml.py::test_a_number_counts_by_pci_bus_only_where_cuda_is_told_so"),
    Mutant("the draw with edits and masks is not measured", "runner.py",
           "for sampling in (plain, edited(plain, self._spec.num_tokens)):", "for sampling in (plain,):",
           f"{RUNNER}::test_a_draw_is_measured_as_it_is_and_with_edits_and_masks"),
    Mutant("nobody looks at the ranks of a start", "trivet/runners/ranks.py",
           "if any(rank.has_failed() for rank in self._ranks):", "if False:",
           f"{RANKS}::test_a_rank_that_fails_in_a_start_ends_what_rank_0_waits_in"),
    Mutant("a rank without room is a lost device", "trivet/runners/other_rank.py",
           "if name in KEPT:", "if False:",
           f"{RANKS}::test_a_rank_without_room_is_a_model_that_does_not_fit"),
    Mutant("quantised rows of joined matrices change places", "packed_weights.py",
           "torch.cat([piece[i] for piece in pieces])", "torch.cat([piece[i] for piece in pieces[::-1]])",
           f"{QUANTISED}::test_a_quantised_file_is_computed_as_what_it_says[q8_0-1]"),
    Mutant("q4_1 is laid out without its minimum", "packed_weights.py",
           'float16_field(blocks, 2) if kind == "q4_1"', 'float16_field(blocks, 2) * 0 if kind == "q4_1"',
           f"{QUANTISED}::test_a_quantised_file_is_computed_as_what_it_says[q4_0-1]"),
    Mutant("a rank has the quantised columns of another", "trivet/runners/stored_matrix.py",
           "first, last = row_bytes(kind, columns.start), row_bytes(kind, columns.stop)",
           "first, last = 0, row_bytes(kind, columns.size)",
           f"{QUANTISED}::test_a_quantised_file_is_computed_as_what_it_says[q4_1-2]"),
    Mutant("all keys at once", "twins.py", "num_blocks = max(1, MAX_KEYS // block_size)",
           "num_blocks = 1 << 20", f"{PLAIN}/test_twins.py::test_a_longer_context_takes_no_more_memory"),
    Mutant("sums of a twin's pieces are not rescaled", "twins.py", "self._sums * shrink[..., None] +",
           "self._sums +", f"{PLAIN}/test_twins.py::test_pieces_of_keys_give_what_all_give_at_once"),
    Mutant("the longest context is not measured", "trivet/runners/warm_up.py",
           "warm_up_step((1,), block_size, num_cached=longest - 1)", "warm_up_step((1,), block_size)",
           f"{RUNNER}::test_more_tokens_than_one_sequence_has_are_measured"),
    Mutant("a step is brought to the host", "runner.py", "step.hidden = hidden.index_select(0, rows)",
           "step.hidden = hidden.cpu().index_select(0, rows)",
           f"{ENGINE}::test_a_step_waits_for_nothing_before_it_is_collected"),
    Mutant("a matrix is float32 while it is packed", "packed_weights.py",
           "_unconverted(part) if DTYPES.keys() >= set(part.formats) else part.float32()", "part.float32()",
           f"{PLAIN}/test_loading.py::test_host_memory_holds_one_slice_beside_the_weights"),
    Mutant("a rank reads the rows of the other", "packed_weights.py",
           "np.array(matrix.stored(span, part.columns))",
           "np.array(matrix.stored(type(span)(0, matrix.shape[0]), part.columns)[span.start : span.stop])",
           f"{PLAIN}/test_loading.py::test_the_ranks_together_read_each_matrix_once[mistral]"),
    Mutant("a whole quantised matrix at once", "twins.py",
           "for columns in _pieces(weight.shape[1], x.shape[1]):", "for columns in (slice(None),):",
           f"{PLAIN}/test_twins.py::"
           "test_a_step_of_twins_takes_no_more_than_is_planned_for_kernels[256-True-True]"),
    Mutant("planned peaks are told", "runner.py", "self._measured[part] = int(",
           "int(",
           f"{MEMORY}::test_memory_tells_the_peaks_of_a_step_and_what_graphs_took"),
    Mutant("a length is brought to the host", DECODE_FILE, "    group = num_heads // num_kv_heads\n",
           "    group = num_heads // num_kv_heads\n    num_splits = min(num_splits, int(seq_lens.max()))\n",
           f"{INTERPRETED}/test_custom_ops.py::test_the_host_waits_for_nothing_inside_an_operation[decode]"),
    Mutant("padding is left out by a mask", WRITE, "    num_heads, head_dim = key.shape[1:]\n",
           "    num_heads, head_dim = key[slots >= 0].shape[1:]\n",
           f"{INTERPRETED}/test_custom_ops.py::test_the_host_waits_for_nothing_inside_an_operation[write_kv]"),
    Mutant("a report comes at its end", "trivet/commands/selftest.py", "for each in outcomes:",
           "for each in list(outcomes):",
           "tests/platform/commands/test_selftest.py::test_a_line_stands_there_before_the_next_case_runs"),
    Mutant("a speed that cannot be measured ends all", "measures.py",
           'yield from guarded(measured, (op,), f"speed, {what}", DTYPE)', "yield from measured",
           f"{PLAIN}/test_self_test.py::test_a_kernel_that_cannot_run_fails_its_cases_and_its_speed_alone"),
    Mutant("what is left of a shape ends all", "self_test.py",
           'yield from guarded(of_shape, ("self-test",), f"all that is left of {heads}", dtype)',
           "yield from of_shape",
           f"{PLAIN}/test_self_test.py::test_arguments_that_do_not_fit_fail_what_is_left_of_a_shape"),
    Mutant("the twins are what is right", "self_test.py", "check = check_of(table, EXACT)",
           "check = check_of(table)", f"{SELF_TEST}::test_the_whole_self_test_compares_with_float64"),
)  # fmt: skip

SAMPLING = (
    Mutant("top_k off by one", SAMPLER_FILE, "k_floor = values.gather(1, count[:, None] - 1)",
           "k_floor = values.gather(1, (count[:, None] - 2).clamp(min=0))", f"{SAMPLER}::{DRAWN}"),
    Mutant("top_p of all and not of what top_k left", SAMPLER_FILE, "mass = kept.double()",
           "mass = values.double()", f"{SAMPLER}::{DRAWN}"),
    Mutant("min_p is no logarithm", SAMPLER_FILE, "min_p.double().log().float()", "min_p",
           f"{SAMPLER}::{DRAWN}"),
    Mutant("temperature the other way", SAMPLER_FILE, "relative = relative / columns",
           "relative = relative * columns", f"{SAMPLER}::{DRAWN}"),
    Mutant("the sum of the weights is one", SAMPLER_FILE, "uniform[:, None] * ends[:, -1:]",
           "uniform[:, None]", f"{SAMPLER}::{DRAWN}"),
    Mutant("equals come before in rank", SAMPLER_FILE, "(logits > chosen)", "(logits >= chosen)",
           f"{SAMPLER}::{DRAWN}"),
    Mutant("the higher id among equals", SAMPLER_FILE, "keys = (ordered << 32) | (last - torch.arange(",
           "keys = (ordered << 32) | (0 * last + torch.arange(", f"{SAMPLER}::{DRAWN}"),
    Mutant("penalties the other way", SAMPLER_FILE, "values > 0, values / mul", "values < 0, values / mul",
           f"{SAMPLER}::test_edits_and_masks_come_before_the_temperature"),
    Mutant("masks the other way", SAMPLER_FILE, "logits.shape[1]] != 0", "logits.shape[1]] == 0",
           f"{SAMPLER}::test_edits_and_masks_come_before_the_temperature"),
    Mutant("drafts are taken where they are refused", SAMPLER_FILE, "uniform[:, 1] < share",
           "uniform[:, 1] > share", f"{SAMPLER}::test_drafts_are_taken_up_to_the_first_that_is_refused"),
    Mutant("a refused draft may be drawn", SAMPLER_FILE, "torch.where(is_given[:, None], 0.0, weights",
           "torch.where(is_given[:, None], weights.gather(1, wanted), weights",
           f"{SAMPLER}::test_drafts_are_taken_up_to_the_first_that_is_refused"),
    Mutant("a row with one number is finite", SAMPLER_FILE, "finite = logits.isfinite().all(1)",
           "finite = logits.isfinite().any(1)",
           f"{SAMPLER}::test_a_row_that_is_not_finite_spoils_no_other"),
)  # fmt: skip

MUTANTS = (*KERNELS, *RUNS, *SAMPLING)
