#include <optional>
#include <utility>

#include "cc/core/siphash.h"
#include "cc/core/time_text.h"
#include "python/bind.h"
#include "python/threads.h"

namespace twml {
namespace {

// Offsets as they came, if they are of one of the types that string arrays have.
template <class Offset>
py::array_t<int64_t> HashedAt(const Array<uint8_t>& bytes, const Array<Offset>& offsets, SipKey key,
                              int64_t num_buckets, bool typed, int num_threads) {
  py::array_t<int64_t> out(std::max<py::ssize_t>(offsets.size() - 1, 0));
  int64_t* data = out.mutable_data();
  Status status;
  {
    py::gil_scoped_release release;
    status = HashStrings(SpanOf(bytes), SpanOf(offsets), key, num_buckets, Threads(num_threads),
                         data, typed);
  }
  RaiseIfError(status);
  return out;
}

py::array_t<int64_t> Hashed(const ArrayLike& data, const ArrayLike& offsets,
                            std::pair<int64_t, int64_t> key, int64_t num_buckets, bool typed,
                            int num_threads) {
  const auto bytes = ToArray<uint8_t>(data, "data");
  RequireRank(bytes, 1, "data");
  const SipKey sip_key = {static_cast<uint64_t>(key.first), static_cast<uint64_t>(key.second)};
  if (py::isinstance<py::array_t<int32_t>>(offsets)) {
    const auto narrow = ToArray<int32_t>(offsets, "offsets");
    RequireRank(narrow, 1, "offsets");
    return HashedAt(bytes, narrow, sip_key, num_buckets, typed, num_threads);
  }
  const auto wide = ToArray<int64_t>(offsets, "offsets");
  RequireRank(wide, 1, "offsets");
  return HashedAt(bytes, wide, sip_key, num_buckets, typed, num_threads);
}

template <class Offset>
py::array_t<int64_t> PartsAt(const Array<uint8_t>& bytes, const Array<Offset>& offsets,
                             TimeFeature feature, int num_threads) {
  py::array_t<int64_t> out(std::max<py::ssize_t>(offsets.size() - 1, 0));
  int64_t* data = out.mutable_data();
  Status status;
  {
    py::gil_scoped_release release;
    status = PartsOfTimes(SpanOf(bytes), SpanOf(offsets), feature, Threads(num_threads), data);
  }
  RaiseIfError(status);
  return out;
}

py::array_t<int64_t> Parts(const ArrayLike& data, const ArrayLike& offsets, const std::string& part,
                           const std::string& unit, int num_threads) {
  const auto bytes = ToArray<uint8_t>(data, "data");
  RequireRank(bytes, 1, "data");
  TimeFeature feature;
  RaiseIfError(MakeTimeFeature(part, unit, &feature));
  if (py::isinstance<py::array_t<int32_t>>(offsets)) {
    const auto narrow = ToArray<int32_t>(offsets, "offsets");
    RequireRank(narrow, 1, "offsets");
    return PartsAt(bytes, narrow, feature, num_threads);
  }
  const auto wide = ToArray<int64_t>(offsets, "offsets");
  RequireRank(wide, 1, "offsets");
  return PartsAt(bytes, wide, feature, num_threads);
}

}  // namespace

void BindHashStrings(py::module_& m) {
  using py::literals::operator""_a;
  m.def("hash_strings", &Hashed, "data"_a, "offsets"_a, "key"_a, py::kw_only(),
        IntArg("num_buckets") = int64_t{1} << 62, "typed"_a = false, IntArg("num_threads") = 0,
        "SipHash-2-4 (Aumasson and Bernstein 2012) of byte strings, modulo num_buckets: the same "
        "integers as tf.strings.to_hash_bucket_strong.\n\n"
        "Args:\n"
        "    data: uint8 [N], the bytes of all strings.\n"
        "    offsets: int32 or int64 [U + 1]; string i is data[offsets[i]:offsets[i + 1]].\n"
        "    key: two integers in [-2^63, 2^63), the key of the hash.\n"
        "    num_buckets: at least 1.\n"
        "    typed: whether the strings are integers or bools: `3.0` is hashed as `3`, and `True` "
        "as `true`, and a null value as the empty string.\n"
        "    num_threads: 0 is one for each core.\n\n"
        "Returns:\n"
        "    int64 [U] in [0, num_buckets).\n\n"
        "Raises:\n"
        "    ValueError: an argument out of its range.");
  m.def(
      "time_parts", &Parts, "data"_a, "offsets"_a, "part"_a, "unit"_a, py::kw_only(),
      IntArg("num_threads") = 0,
      "Features of times in UTC that are byte strings: dates, possibly with a time and a zone, "
      "or integers since 1970.\n\n"
      "Args:\n"
      "    data: uint8 [N], the bytes of all strings.\n"
      "    offsets: int32 or int64 [U + 1]; string i is data[offsets[i]:offsets[i + 1]].\n"
      "    part: hour (0 to 23), weekday (1, Monday, to 7), month (1 to 12) or hour_of_week (0 to "
      "167).\n"
      "    unit: of integers: seconds, milliseconds, microseconds or nanoseconds since 1970, or "
      "YYYYMMDD; empty: integers are no times.\n"
      "    num_threads: 0 is one for each core.\n\n"
      "Returns:\n"
      "    int64 [U]; -1 for an empty string or a null value, -2 for what is no time.\n\n"
      "Raises:\n"
      "    ValueError: an argument out of its range.");
}

}  // namespace twml
