// The steps of a scorer's program. A step reads and writes registers: arrays of the rows of a
// block.
#ifndef TWML_CORE_SCORER_STEP_H_
#define TWML_CORE_SCORER_STEP_H_

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/simd/scoring_kernels.h"
#include "cc/core/span.h"
#include "cc/core/status.h"

namespace twml::scorer {

using Register = int32_t;  // a number of a register
constexpr Register kNoRegister = -1;

// A dense register has numbers of a fixed shape for each row. Ids, values and strings of bags are
// the entries of sparse rows, whose offsets are in a register of row splits.
enum class Form : uint8_t { kDense, kStrings, kIds, kValues, kRowSplits, kBagStrings };

// The items of a dense register: float, int64_t, or uint8_t that is 0 or 1.
enum class Type : uint8_t { kFloat, kInteger, kBool };

constexpr int64_t SizeOf(Type type) {
  return type == Type::kFloat ? 4 : type == Type::kInteger ? 8 : 1;
}

struct RegisterInfo {
  std::string name;
  Form form = Form::kDense;
  Type type = Type::kFloat;
  Register row_splits = kNoRegister;  // of entries
};

// The shape of the numbers of a row, and their number.
struct RowShape {
  std::vector<int64_t> dims;
  int64_t width = 1;
};

// Multiplies the sizes of a row. False if one is negative, or if the product is more than kMaxWidth
// without those that are 0, so that products of some of the sizes cannot overflow either.
constexpr int64_t kMaxWidth = 1 << 24;
bool WidthOf(const std::vector<int64_t>& dims, int64_t* width);

// The shapes of the registers, which a step continues.
class Shapes {
 public:
  explicit Shapes(std::vector<RegisterInfo> const& registers)
      : registers_(registers), shapes_(registers.size()) {}

  const std::vector<int64_t>& dims(Register r) const { return shapes_[r].dims; }
  int64_t width(Register r) const { return shapes_[r].width; }
  const std::string& name(Register r) const { return registers_[r].name; }

  // Fails if there are more numbers than WidthOf permits.
  Status Set(Register r, std::vector<int64_t> dims);

  std::vector<RowShape> Take() { return std::move(shapes_); }

  // Requires one dimension of the given size, or of any size if it is negative.
  Status RequireVector(Register r, int64_t size) const;

 private:
  const std::vector<RegisterInfo>& registers_;
  std::vector<RowShape> shapes_;
};

// Memory for the entries of a block. It is reused: after the first blocks, nothing is allocated.
class EntryMemory {
 public:
  EntryMemory() = default;
  EntryMemory(const EntryMemory&) = delete;
  EntryMemory& operator=(const EntryMemory&) = delete;
  ~EntryMemory() { Free(); }

  // Uninitialized memory for n items, valid until Reset.
  template <class T>
  T* New(int64_t n) {
    constexpr int64_t kLine = 64, kMost = int64_t{1} << 48;
    if (n < 0 || n > kMost) throw std::bad_alloc();
    const int64_t bytes = (n * static_cast<int64_t>(sizeof(T)) / kLine + 1) * kLine;
    if (bytes > size_ - used_) Grow(bytes);
    T* const memory = reinterpret_cast<T*>(block_ + used_);
    used_ += bytes;
    return memory;
  }
  void Reset();
  // Frees the memory if it is more than `bytes`.
  void Trim(int64_t bytes) {
    if (total_ > bytes) Free();
  }

 private:
  void Grow(int64_t bytes);
  void Free();

  char* block_ = nullptr;
  int64_t size_ = 0, used_ = 0, total_ = 0;
  std::vector<void*> full_;  // earlier blocks, until Reset
};

// Where a register is during a block.
//  dense: the first row; `stride` is the number of items between rows, 0 if all rows are the same.
//  row splits: the offsets of the block, from 0; `stride` is 1, or 0 if all rows are the same.
//  entries: the first one; `stride` is their position in the request, for messages.
//  strings: a StringColumn; `stride` as for row splits.
struct View {
  const void* data = nullptr;
  int64_t stride = 0;
};

struct StringColumn {
  const uint8_t* bytes;
  const int64_t* offsets;  // of the strings of the block
};

template <class T>
struct Rows {
  T* data;
  int64_t stride;
  T* operator[](int64_t row) const { return data + row * stride; }
};

struct RowSplits {
  const int64_t* data;
  int64_t stride;
  int64_t rows;
  int64_t begin(int64_t row) const { return data[row * stride]; }
  int64_t end(int64_t row) const { return data[row * stride + 1]; }
  int64_t num_entries() const { return end(rows - 1); }
  // The number of entries of all rows. Entries that rows share are counted once for each row.
  int64_t total() const { return stride == 0 ? rows * data[1] : num_entries(); }
};

struct FetchedRows;

// A block of rows that goes through the steps on one thread.
struct Frame {
  int64_t rows = 0;  // at least 1
  View* views = nullptr;
  const RowShape* shapes = nullptr;
  const RegisterInfo* registers = nullptr;
  EntryMemory* memory = nullptr;
  // For each register of ids, a limit below which all of them are known to be, or 0.
  int64_t* limits = nullptr;
  // In a ranking request, sums of the user's entries: where a register of sums starts from, and
  // whether the frame computes what the candidates' sums start from.
  const View* bases = nullptr;
  bool is_base = false;
  // The rows of tables in files, and the number of this block among those that were collected.
  const FetchedRows* fetched = nullptr;
  int64_t block = 0;

  int64_t width(Register r) const { return shapes[r].width; }
  template <class T>
  Rows<const T> In(Register r) const {
    return {static_cast<const T*>(views[r].data), views[r].stride};
  }
  // The memory of a dense output.
  template <class T>
  Rows<T> Out(Register r) const {
    return {static_cast<T*>(const_cast<void*>(views[r].data)), views[r].stride};
  }
  RowSplits Splits(Register r) const {
    return {static_cast<const int64_t*>(views[r].data), views[r].stride, rows};
  }
  RowSplits SplitsOf(Register entries) const { return Splits(registers[entries].row_splits); }
  // The entries of a register, or null if it is kNoRegister.
  template <class T>
  const T* Entries(Register r) const {
    return r == kNoRegister ? nullptr : static_cast<const T*>(views[r].data);
  }
  // Makes memory the entries of an output. They have the positions of the entries of `like`.
  void SetEntries(Register r, const void* entries, Register like) const {
    views[r] = {entries, views[like].stride};
  }
};

// How a step treats rows whose entries are in two parts.
enum class SplitEntries {
  kRefused,  // it needs the whole row
  kEach,     // it makes something of each entry
  kSums,     // it adds up; see Frame::bases
};

class Step {
 public:
  virtual ~Step() = default;

  // Whether rows of its tables are in files. They are fetched between Collect and Run.
  virtual bool reads_files() const { return false; }
  // Lists the rows that Run will read. Of a step without files, computes the outputs, on which the
  // ids of others depend.
  virtual Status Collect(const Frame& frame, FetchedRows* /*fetched*/) const { return Run(frame); }

  virtual SplitEntries split_entries() const { return SplitEntries::kRefused; }

  // Sets the shapes of the dense outputs from the shapes of the inputs.
  virtual Status Shape(Shapes* shapes) const = 0;
  // Computes the outputs of a block. Fails only if entries of the request are invalid.
  virtual Status Run(const Frame& frame) const = 0;
  // Applies an activation to the output as well, if the step can.
  virtual bool Fuse(Activation /*activation*/) { return false; }
  // About how many nanoseconds a row takes.
  virtual int64_t CostOfRow(const Shapes& shapes) const;

  std::string name;  // for messages, for example "step 3 (dense)"
  std::vector<Register> in, out;
};

// One float for each float of an input.
class ElementwiseStep : public Step {
 public:
  Status Shape(Shapes* shapes) const override { return shapes->Set(out[0], shapes->dims(in[0])); }
};

// A function of the vectors along the last axis of an input.
class LastAxisStep : public ElementwiseStep {
 public:
  Status Shape(Shapes* shapes) const override;
  Status Run(const Frame& frame) const override;

 private:
  // y = the function of x, n > 0 numbers each.
  virtual void Apply(const float* x, int64_t n, float* y) const = 0;
};

// Checks that ids are in [0, limit).
Status CheckEntryIds(const Frame& frame, Register ids, int64_t limit);

}  // namespace twml::scorer

#endif  // TWML_CORE_SCORER_STEP_H_
