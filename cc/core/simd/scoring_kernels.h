// Kernels of the dense part of a scorer, compiled once per SIMD level. The result of a row does not
// depend on how many rows a call has.
#ifndef TWML_CORE_SIMD_SCORING_KERNELS_H_
#define TWML_CORE_SIMD_SCORING_KERNELS_H_

#include <cstdint>

namespace twml {

constexpr int64_t kPanel = 16;     // columns of a weight matrix that are next to each other
constexpr int64_t kMaxNarrow = 4;  // matrices of at most so many columns are stored by column

enum class Activation : int32_t {
  kLinear,
  kRelu,
  kSigmoid,
  kTanh,
  kSilu,
  kExponential,
  kElu,
  kGelu,
  kSoftplus,
};

// A matrix [in, out] of a dense layer, as the kernel reads it. If out > kMaxNarrow, it consists of
// panels of kPanel columns, [ceil(out / kPanel), in, kPanel], padded with zeros; otherwise it is
// transposed, [out, in].
struct PackedWeights {
  const float* data;
  int64_t in, out;
};

// The state of an id in max_norm.
struct IdNormalization {
  float max_abs;  // positive
  float bias;
};

constexpr int64_t kTreeRows = 64;    // rows that go through a tree together
constexpr int64_t kTreeLeaves = 32;  // of a tree in this form, as many as an integer has bits

// An inner node of a tree of at most kTreeLeaves leaves, which are numbered from left to right.
// A row that goes right cannot end at a leaf on the left.
struct TreeCondition {
  int32_t column;
  float threshold;  // a number that is not larger goes left
  int32_t missing_left;
  uint32_t if_right;  // the leaves that are not on the left, as bits
};

constexpr int64_t kQuantizedRowHead = 8;  // bytes of scale and offset

// The bytes of a row of codes of 4 or 8 bits.
constexpr int64_t QuantizedRowBytes(int64_t dim, int bits) {
  return kQuantizedRowHead + (bits == 8 ? dim : (dim + 1) / 2);
}

struct ScoringKernels {
  // y[r] = activation(bias + x[r] . weights) for each of the rows. Strides are numbers of floats; a
  // stride of 0 repeats a row. `bias` is [out], or null.
  void (*dense)(const PackedWeights& weights, const float* bias, Activation activation,
                const float* x, int64_t x_stride, int64_t rows, float* y, int64_t y_stride);
  // y[i] = activation(x[i]) for n numbers. x and y may be the same.
  void (*activate)(Activation activation, const float* x, int64_t n, float* y);
  // The dot products of all pairs i < j of the vectors x [n, dim], in the order of (i, j).
  // `scratch` has dim * (n + kPanel) floats.
  void (*pair_products)(const float* x, int64_t n, int64_t dim, float* scratch, float* out);
  // out[0, dim) = sum over k in [0, n) of values[k] * scale[ids[k]] * table[ids[k]]. All values are
  // 1 if `values` is null.
  void (*sum_int8_rows)(const int8_t* table, const float* scale, int64_t dim, const int64_t* ids,
                        const float* values, int64_t n, float* out);
  // out[0, dim) = sum over k in [0, n) of values[k] * row ids[k] of rows of codes, of 8 bits and of
  // 4 bits. A row is a float scale, a float offset and the codes, and has the items offset + scale
  // * code. Of 4 bits, byte i has the code of item i in its low half and that of i + (dim + 1) / 2.
  void (*sum_quantized_rows[2])(const uint8_t* rows, int64_t dim, const int64_t* ids,
                                const float* values, int64_t n, float* out);
  // y[k] = clip(values[k] / max_abs, -1, 1) + bias of ids[k]; the bias where the value is not
  // finite. Returns whether all values are finite. All values are 1 if `values` is null.
  bool (*normalize)(const IdNormalization* states, const int64_t* ids, const float* values,
                    int64_t n, float* y);
  // The leaves of a tree that the n conditions leave to each of kTreeRows rows, as bits: a row ends
  // at the first of them. `columns` has kTreeRows numbers of each column.
  void (*leaves_left)(const float* columns, const TreeCondition* conditions, int64_t n,
                      uint32_t* leaves);
};

}  // namespace twml

#endif  // TWML_CORE_SIMD_SCORING_KERNELS_H_
