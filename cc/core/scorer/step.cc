#include "cc/core/scorer/step.h"

#include <algorithm>

namespace twml::scorer {

bool WidthOf(const std::vector<int64_t>& dims, int64_t* width) {
  bool empty = false;
  *width = 1;
  for (const int64_t dim : dims) {
    empty = empty || dim == 0;
    if (dim < 0 || dim > kMaxWidth) return false;
    *width *= std::max<int64_t>(dim, 1);
    if (*width > kMaxWidth) return false;
  }
  if (empty) *width = 0;
  return true;
}

Status Shapes::Set(Register r, std::vector<int64_t> dims) {
  RowShape& shape = shapes_[r];
  if (!WidthOf(dims, &shape.width)) {
    return Invalid("a row of '", name(r), "' must have at most ", kMaxWidth, " numbers");
  }
  shape.dims = std::move(dims);
  return Status();
}

Status Shapes::RequireVector(Register r, int64_t size) const {
  const RowShape& shape = shapes_[r];
  if (shape.dims.size() == 1 && (size < 0 || shape.width == size)) return Status();
  std::string got = "[B";
  for (const int64_t dim : shape.dims) got += ", " + std::to_string(dim);
  if (size < 0) return Invalid("'", name(r), "' must have the shape [B, any], got ", got, "]");
  return Invalid("'", name(r), "' must have the shape [B, ", size, "], got ", got, "]");
}

void EntryMemory::Reset() {
  if (!full_.empty()) {  // one block that is large enough for all, next time
    const int64_t total = total_;
    Free();
    Grow(total);
  }
  used_ = 0;
}

void EntryMemory::Grow(int64_t bytes) {
  constexpr int64_t kLine = 64, kSmallest = 1 << 14;
  if (block_ != nullptr) full_.push_back(block_);
  block_ = nullptr;
  size_ = used_ = 0;
  const int64_t size = std::max({(bytes / kLine + 1) * kLine, total_, kSmallest});
  block_ =
      static_cast<char*>(std::aligned_alloc(static_cast<size_t>(kLine), static_cast<size_t>(size)));
  if (block_ == nullptr) throw std::bad_alloc();
  size_ = size;
  total_ += size;
}

void EntryMemory::Free() {
  for (void* block : full_) std::free(block);
  full_.clear();
  std::free(block_);
  block_ = nullptr;
  size_ = used_ = total_ = 0;
}

int64_t Step::CostOfRow(const Shapes& shapes) const {
  int64_t items = 0;
  for (const Register r : in) items += r == kNoRegister ? 0 : shapes.width(r);
  return 10 + items / 4;
}

Status LastAxisStep::Shape(Shapes* shapes) const {
  if (shapes->dims(in[0]).empty()) {
    return Invalid("'", shapes->name(in[0]), "' must have at least 2 dimensions");
  }
  return ElementwiseStep::Shape(shapes);
}

Status LastAxisStep::Run(const Frame& frame) const {
  const int64_t width = frame.width(in[0]);
  const int64_t last = frame.shapes[in[0]].dims.back();
  const auto x = frame.In<float>(in[0]);
  const auto y = frame.Out<float>(out[0]);
  for (int64_t r = 0; r < frame.rows; ++r) {
    for (int64_t i = 0; i < width; i += last) Apply(x[r] + i, last, y[r] + i);
  }
  return Status();
}

Status CheckEntryIds(const Frame& frame, Register ids, int64_t limit) {
  if (frame.limits[ids] != 0 && frame.limits[ids] <= limit) return Status();
  const int64_t n = frame.SplitsOf(ids).num_entries();
  const auto* const items = frame.Entries<int64_t>(ids);
  // The sign bit of `id | (limit - 1 - id)` says whether an id is out of range. No early exit,
  // which lets the compiler vectorize.
  const uint64_t last = static_cast<uint64_t>(limit) - 1;
  uint64_t bits = limit == 0 && n > 0 ? ~uint64_t{0} : 0;
  for (int64_t k = 0; k < n; ++k) {
    const auto id = static_cast<uint64_t>(items[k]);
    bits |= id | (last - id);
  }
  if (static_cast<int64_t>(bits) >= 0) {
    frame.limits[ids] = limit;
    return Status();
  }
  int64_t k = 0;
  while (items[k] >= 0 && items[k] < limit) ++k;
  const std::string& name = frame.registers[ids].name;
  return Invalid(name[0] == '#' ? "ids" : name, "[", frame.views[ids].stride + k, "] = ", items[k],
                 " is out of range [0, ", limit, ")");
}

}  // namespace twml::scorer
