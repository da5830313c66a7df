// Adapters (LoRA, Hu et al. 2021) in a step: y += scale * B (A x), each token with the adapter of its slot.
//
// Storage: every adapted matrix has room for all slots, in bfloat16 or float32 as the model's plain floats. Lanes
// run along the columns of A and along the rows of B, so that no rank is padded, and what a slot does not use of
// its room is not read: `ranks` says how many rows of A there are, 0 for an empty slot or another matrix.
//   A  [slots][max_rank][columns]
//   B  [slots][rows / 32][max_rank][32]: what one unit of the base's product needs stands together
//
// Work: A x is a phase before the base's product, in units of 16 tokens of one slot and 8 rows of A, whatever
// sequences the tokens are of: decodes that share an adapter read it once, as the tokens of a chunk do. B's part is
// added by whoever has just written a unit of the base's product, at no barrier. 2 * rank * (columns + rows) FLOPs
// a token and matrix, and as many values of A and B read. A token without an adapter is in no unit, and a step
// without such tokens has no such phase (and no x in float32, which is written for A alone).
//
// Every A x and every sum over the rank is added up in one order, whichever tokens and threads there are.
//
// Reference: platform/trivet/runners/adapters.py. Test: test_native_adapters.py and the contract suite.
#pragma once

#include <cstdint>

namespace trivet {

struct Product;

// One matrix's adapters in all slots; `a` null: the slots have no room for this matrix.
struct AdaptedMatrix {
  const void* a;
  const void* b;
  const int32_t* ranks;  // [slots + 1]; 0 of slot 0
  int32_t columns;       // padded
  int32_t rows;          // padded
};

// The order of a layer's in `TrivetLayer.adapted`; a layer that is not gated has its only matrix as GATE.
enum AdaptedPart : int { ADAPTED_Q, ADAPTED_K, ADAPTED_V, ADAPTED_O, ADAPTED_GATE, ADAPTED_UP, ADAPTED_DOWN };

// Memory for the adapters of a step.
struct AdapterSpace {
  float* lows;     // [T, 3, max_rank]: A x of each token, for up to three matrices of the same x
  int32_t* books;  // [2, 5, max_tokens]
  int32_t max_tokens;
  int32_t max_rank;
  int32_t kind;  // F32 or BF16
  int32_t pad;
};
constexpr int LOWS = 3;

// Which tokens of a step have which adapter.
class AdapterWork {
 public:
  static constexpr int TOKENS = 16;  // of a unit of A x
  static constexpr int RANKS = 8;    // rows of A in it

  // `slots` [num_seqs]; the books are those of number `which`, 0 or 1.
  AdapterWork(const AdapterSpace& space, const int32_t* slots, int num_seqs, const int32_t* query_start_loc,
              int which);

  bool is_empty() const { return !num_groups_; }
  // Over the slots in use; 0: nothing is to be done for these matrices.
  int largest_rank(const AdaptedMatrix* matrices, int count) const;
  int num_units(int num_matrices, int largest_rank) const { return num_groups_ * num_matrices * pieces(largest_rank); }
  // One unit of A x, of these matrices; `x` [T, columns].
  void multiply_a(const AdaptedMatrix* matrices, int num_matrices, int largest_rank, const float* x, int unit) const;
  // After `multiply` of the same unit and rows: adds what B makes of A x, which is the `low`-th of its token.
  void add_b(const AdaptedMatrix& matrix, int low, const Product& product, int unit, int first, int last) const;

 private:
  struct Group {
    int32_t slot, first, count;  // of `tokens_`
  };
  static int pieces(int rank) { return (rank + RANKS - 1) / RANKS; }

  const AdapterSpace& space_;
  int32_t* slot_of_;  // [T]
  int32_t* tokens_;   // adapted ones, by slot
  Group* groups_;
  int num_groups_ = 0;
};

}  // namespace trivet
