// What a thread of a step writes down for itself.
#pragma once

#include "abi.h"
#include "attention.h"
#include "product.h"

namespace trivet {

// Rows of activations that one unit of a product covers at most.
constexpr int MAX_ROW_BLOCK = MAX_TILED_ROWS;

struct Scratch {
  AttentionScratch attention;
  alignas(64) float gate[MAX_ROW_BLOCK * UNIT_ROWS];
  alignas(64) float up[MAX_ROW_BLOCK * UNIT_ROWS];
  TileScratch tiles;
};

inline Scratch& scratch_of(const TrivetModel& model, int thread) {
  return *(Scratch*)(model.scratch + (size_t)thread * sizeof(Scratch));
}

}  // namespace trivet
