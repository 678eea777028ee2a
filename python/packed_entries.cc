#include "cc/core/packed_entries.h"

#include <vector>

#include "python/bind.h"
#include "python/threads.h"

namespace twml {
namespace {

py::array_t<uint8_t> PackIds(const ArrayLike& ids, int64_t input_dim) {
  const auto array = ToArray<int64_t>(ids, "ids");
  RequireRank(array, 1, "ids");
  std::vector<uint8_t> message;
  Status status;
  {
    py::gil_scoped_release release;
    const int64_t splits[] = {0, static_cast<int64_t>(array.size())};
    const Csr<int64_t> batch = {SpanOf(array), {}, {splits, 2}, true};
    status = PackEntries<int64_t>(batch, input_dim, 1, false, Threads(1), [&](int64_t, int64_t n) {
      message.resize(n);
      return message.data();
    });
  }
  RaiseIfError(status);
  return MoveToArray(std::move(message));
}

py::array_t<int64_t> UnpackIds(const ArrayLike& packed) {
  const auto bytes = ToArray<uint8_t>(packed, "packed");
  RequireRank(bytes, 1, "packed");
  std::vector<int64_t> ids, splits;
  std::vector<float> values;
  Status status;
  {
    py::gil_scoped_release release;
    status = UnpackEntries<int64_t>(
        SpanOf(bytes), [&](int64_t entries, int64_t rows, bool binary) -> UnpackedEntries<int64_t> {
          ids.reserve(entries + 1);  // its address is not null where there are no entries
          ids.resize(entries);
          values.resize(binary ? 0 : entries);
          splits.resize(rows + 1);
          return {ids.data(), values.data(), splits.data()};
        });
  }
  RaiseIfError(status);
  if (splits.size() != 2 || !values.empty()) {
    RaiseIfError(Invalid("packed must be a message of pack_ids, got entries of ", splits.size() - 1,
                         " rows"));
  }
  return MoveToArray(std::move(ids));
}

}  // namespace

void BindPackedEntries(py::module_& m) {
  using py::literals::operator""_a;
  m.def("pack_ids", &PackIds, "ids"_a, py::kw_only(), IntArg("input_dim"),
        R"(Packs ids, with as few bits each as the largest possible one needs.

Args:
  ids: int64 [K], each in [0, input_dim).
  input_dim: N, number of possible ids.

Returns:
  uint8, a message for `unpack_ids`, in the byte order of the machine: that of
  `twml_ops.ops.pack_entries` for a binary batch of one row.

Raises:
  ValueError: An argument out of its range.)");
  m.def("unpack_ids", &UnpackIds, "packed"_a,
        R"(Unpacks a message of `pack_ids`.

Args:
  packed: uint8, the message.

Returns:
  int64 [K], the ids in their order.

Raises:
  ValueError: `packed` is not such a message.)");
}

}  // namespace twml
