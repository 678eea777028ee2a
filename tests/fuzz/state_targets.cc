// Bytes that programs keep or send: messages of entries, sketches, quantized rows, lookups.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>

#include "cc/core/dynamic_lookup.h"
#include "cc/core/packed_entries.h"
#include "cc/core/quantile_sketch.h"
#include "cc/core/quantize_rows.h"
#include "cc/core/reuse_distance.h"
#include "tests/cc/sketch_arrays.h"
#include "tests/fuzz/targets.h"

namespace twml::fuzz {
namespace {

template <class Id>
struct Entries {
  std::vector<Id> ids;
  std::vector<float> values;
  std::vector<int64_t> row_splits = {0};
  bool binary = false;

  Csr<Id> csr() const { return {ids, values, row_splits, binary}; }
};

// Reads a message, of which no more may be allocated than is promised.
template <class Id>
bool Unpack(std::string_view message, Entries<Id>* out) {
  const auto allocate = [&](int64_t entries, int64_t rows, bool binary) {
    const int64_t bytes = entries * static_cast<int64_t>(sizeof(Id) + (binary ? 0 : 4)) + 8 * rows;
    TWML_REQUIRE(bytes <= kMaxUnpackedBytesPerByte * static_cast<int64_t>(message.size()));
    out->ids.assign(entries + 1, 0);
    out->ids.pop_back();  // memory for an item, as null would mean that there is none
    out->values.resize(binary ? 0 : entries);
    out->row_splits.resize(rows + 1);
    out->binary = binary;
    return UnpackedEntries<Id>{out->ids.data(), out->values.data(), out->row_splits.data()};
  };
  return UnpackEntries<Id>(BytesOf(message), allocate).ok();
}

template <class Id>
void ReadMessage(const std::string& message) {
  Entries<Id> entries;
  const bool valid = Unpack(message, &entries);
  if (valid) {
    TWML_REQUIRE(CheckRowSplits(entries.row_splits, static_cast<int64_t>(entries.ids.size())).ok());
  }
  for (const int64_t dim : {int64_t{5}, int64_t{std::numeric_limits<Id>::max()}}) {
    GroupedBatch<Id> grouped, want;
    const bool groups =
        GroupPackedEntries<Id>(BytesOf(message), entries.binary, dim, Serial, &grouped).ok();
    if (!valid) continue;
    const bool expected = GroupBatch<Id>(entries.csr(), dim, nullptr, Serial, &want).ok();
    // Distinct ids that no entry has are refused by the grouping alone.
    TWML_REQUIRE(!groups || expected);
    if (!groups) continue;
    std::visit(
        [&](const auto& a) {
          const auto& b = std::get<std::decay_t<decltype(a)>>(want.groups);
          TWML_REQUIRE(a.num_groups == b.num_groups);
          const auto n = static_cast<int64_t>(entries.ids.size());
          for (int64_t u = 0; u < a.num_groups; ++u) {
            TWML_REQUIRE(a.ids[u] == b.ids[u] && a.splits[u + 1] == b.splits[u + 1]);
          }
          for (int64_t k = 0; k < n; ++k) TWML_REQUIRE(a.rows[k] == b.rows[k]);
        },
        grouped.groups);
  }
}

void Messages(Input input) {
  const std::string message(input.Rest());
  ReadMessage<int32_t>(message);
  ReadMessage<int64_t>(message);
}

// A batch of the input, whose ids are mostly in [0, dim).
Entries<int64_t> TakeEntries(Input* input, int64_t dim) {
  Entries<int64_t> batch;
  batch.binary = input->Below(2) == 1;
  const int64_t rows = input->Below(6);
  for (int64_t b = 0; b < rows; ++b) {
    for (int64_t left = input->Below(40); left > 0; --left) {
      batch.ids.push_back(input->Id() % dim);
      if (batch.ids.back() < 0) batch.ids.back() += dim;
      if (!batch.binary) batch.values.push_back(input->Take<float>());
    }
    batch.row_splits.push_back(static_cast<int64_t>(batch.ids.size()));
  }
  return batch;
}

std::vector<std::string> Pack(const Entries<int64_t>& batch, int64_t dim, int64_t parts,
                              bool deduplicate) {
  std::vector<std::string> messages(parts);
  const auto allocate = [&](int64_t p, int64_t bytes) {
    messages[p].resize(bytes);
    return reinterpret_cast<uint8_t*>(messages[p].data());
  };
  TWML_REQUIRE(
      PackEntries<int64_t>(batch.csr(), dim, parts, deduplicate, Backwards, allocate).ok());
  return messages;
}

void RoundTrips(Input input) {
  const int64_t dims[] = {7, 24, int64_t{1} << 32, std::numeric_limits<int64_t>::max()};
  const int64_t dim = dims[input.Below(4)], parts = 1 + input.Below(4);
  const bool deduplicate = input.Below(2) == 1;
  const Entries<int64_t> batch = TakeEntries(&input, dim);
  const auto messages = Pack(batch, dim, parts, deduplicate);
  for (int64_t p = 0; p < parts; ++p) {
    Entries<int64_t> got;
    TWML_REQUIRE(Unpack(messages[p], &got) && got.binary == batch.binary);
    size_t next = 0;
    for (size_t b = 0; b + 1 < batch.row_splits.size(); ++b) {
      for (int64_t k = batch.row_splits[b]; k < batch.row_splits[b + 1]; ++k) {
        if (batch.ids[k] % parts != p) continue;
        TWML_REQUIRE(next < got.ids.size() && got.ids[next] == batch.ids[k] / parts);
        if (!batch.binary) {
          TWML_REQUIRE(std::memcmp(&got.values[next], &batch.values[k], sizeof(float)) == 0);
        }
        ++next;
      }
      TWML_REQUIRE(got.row_splits[b + 1] == static_cast<int64_t>(next));
    }
    TWML_REQUIRE(next == got.ids.size());
  }
}

std::vector<std::string> BatchSeeds() {
  std::vector<std::string> seeds;
  for (const uint8_t length : {0, 3, 30}) {
    Output out;
    out.PutAll<uint8_t>({2, 1, 1, static_cast<uint8_t>(length % 2), 4});
    for (int row = 0; row < 4; ++row) {
      out.Put(length);
      for (int i = 0; i < length; ++i) out.Put(static_cast<uint8_t>(i * row % 23)).Put(0.5f);
    }
    seeds.push_back(out.bytes());
  }
  return seeds;
}

std::vector<std::string> MessageSeeds() {
  std::vector<std::string> seeds;
  for (const std::string& bytes : BatchSeeds()) {
    for (const int64_t dim : {int64_t{24}, int64_t{1} << 40}) {
      Input input(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
      input.Take<uint16_t>();
      input.Take<uint8_t>();
      const auto messages = Pack(TakeEntries(&input, dim), dim, 2, dim == 24);
      seeds.insert(seeds.end(), messages.begin(), messages.end());
    }
  }
  return seeds;
}

struct SketchBytes : SketchArrays {
  using SketchArrays::SketchArrays;
  bool operator==(const SketchBytes& o) const {
    const auto same = [](const auto& a, const auto& b) {
      return a.size() == b.size() &&
             (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0);
    };
    return same(config, o.config) && same(totals, o.totals) && same(feature_ids, o.feature_ids) &&
           same(counters, o.counters) && same(runs, o.runs) && same(items, o.items);
  }
  std::string bytes() const {
    Output out;
    for (const size_t n :
         {config.size(), feature_ids.size(), totals.size(), counters.size(), runs.size()}) {
      out.Put(static_cast<uint8_t>(n));
    }
    return out.PutAll(config)
        .PutAll(feature_ids)
        .PutAll(totals)
        .PutAll(counters)
        .PutAll(runs)
        .PutAll(items)
        .bytes();
  }
};

void Sketches(Input input) {
  SketchBytes state;
  uint8_t sizes[5];
  for (uint8_t& n : sizes) n = input.Take<uint8_t>();
  state.config = input.Array<double>(sizes[0]);
  state.feature_ids = input.Array<int64_t>(sizes[1]);
  state.totals = input.Array<double>(sizes[2]);
  state.counters = input.Array<int64_t>(sizes[3]);
  state.runs = input.Array<int32_t>(sizes[4]);
  while (!input.done()) state.items.push_back(input.Take<float>());
  std::unique_ptr<QuantileSketch> made, other;
  if (!QuantileSketch::FromState(state.view(), Serial, &made).ok()) return;
  TWML_REQUIRE(QuantileSketch::FromState(state.view(), Backwards, &other).ok());
  TWML_REQUIRE(SketchBytes(*made) == SketchBytes(*other));
  const std::vector<int64_t> ids = {0, 1, 5, -1};
  const std::vector<float> values = {1, -2, INFINITY, NAN};
  const std::vector<float> weights =
      made->options().weighted ? std::vector<float>{1, 0.5f, 0x1p31f, 0} : std::vector<float>();
  for (int round = 0; round < 3; ++round) {
    TWML_REQUIRE(made->Merge(*other, Serial).ok());
    TWML_REQUIRE(other->Merge(*made, Serial).ok());
    TWML_REQUIRE(made->Update(ids, values, weights, Serial).ok());
  }
  const std::vector<int64_t> known = made->FeatureIds();
  const std::vector<double> probabilities = {0, 0.25, 0.5, 1};
  std::vector<float> quantiles(known.size() * 4);
  TWML_REQUIRE(made->Quantiles(known, probabilities, Serial, quantiles.data()).ok());
  for (size_t i = 0; i < quantiles.size(); ++i) {
    if (i % 4 == 0 || std::isnan(quantiles[i])) continue;
    TWML_REQUIRE(!(quantiles[i] < quantiles[i - 1]));
  }
  std::vector<double> ranks(ids.size()), described(4 * known.size());
  TWML_REQUIRE(made->Ranks(ids, values, Serial, ranks.data()).ok());
  made->Describe(known, described.data());
  QuantileBoundaries boundaries;
  const std::vector<int64_t> bins(known.size(), 7);
  TWML_REQUIRE(made->Boundaries(known, bins, true, Serial, &boundaries).ok());
  for (const int64_t id : known) {
    std::vector<float> distinct;
    std::vector<double> weight;
    made->Values(id, &distinct, &weight);
    TWML_REQUIRE(distinct.size() == weight.size());
  }
  // What it writes is read again.
  std::unique_ptr<QuantileSketch> again;
  const SketchBytes written(*made);
  TWML_REQUIRE(QuantileSketch::FromState(written.view(), Serial, &again).ok());
  TWML_REQUIRE(SketchBytes(*again) == written);
}

std::vector<std::string> SketchSeeds() {
  std::vector<std::string> seeds;
  for (const bool weighted : {false, true}) {
    for (const int n : {0, 6, 300}) {
      std::unique_ptr<QuantileSketch> sketch;
      TWML_REQUIRE(QuantileSketch::Make({0.2, 4, weighted}, &sketch).ok());
      std::vector<int64_t> ids;
      std::vector<float> values, weights;
      for (int i = 0; i < n; ++i) {
        ids.push_back(i % 3);
        values.push_back(static_cast<float>(i * 37 % 101));
        if (weighted) weights.push_back(static_cast<float>(1 + i % 5) * 0.7f);
      }
      TWML_REQUIRE(sketch->Update(ids, values, weights, Serial).ok());
      seeds.push_back(SketchBytes(*sketch).bytes());
    }
  }
  return seeds;
}

// A stream that is short enough to be kept exactly, against sorted values.
void Streams(Input input) {
  const bool weighted = input.Below(2) == 1;
  std::unique_ptr<QuantileSketch> sketch;
  TWML_REQUIRE(QuantileSketch::Make({1e-3, 256, weighted}, &sketch).ok());
  std::map<int64_t, std::map<float, double>> want;
  std::map<int64_t, double> missing;
  while (!input.done()) {
    std::vector<int64_t> ids;
    std::vector<float> values, weights;
    for (int64_t left = input.Below(16); left > 0 && !input.done(); --left) {
      ids.push_back(input.Id());
      const auto value = input.Take<float>();
      values.push_back(value);
      const double weight = weighted ? static_cast<double>(input.Below(5)) : 1;
      if (weighted) weights.push_back(static_cast<float>(weight));
      if (std::isnan(value))
        missing[ids.back()] += weight;
      else
        want[ids.back()][value] += weight;
    }
    TWML_REQUIRE(sketch->Update(ids, values, weights, Backwards).ok());
  }
  for (const auto& [id, counts] : want) {
    if (counts.size() > 256) continue;
    double total = 0;
    std::vector<float> distinct;
    std::vector<double> weight;
    for (const auto& [value, count] : counts) {
      total += count;
      double rank = -1;
      TWML_REQUIRE(
          sketch->Ranks(std::vector<int64_t>{id}, std::vector<float>{value}, Serial, &rank).ok());
      TWML_REQUIRE(rank == total);
    }
    double described[QuantileSketch::kNumStatistics];
    sketch->Describe(std::vector<int64_t>{id}, described);
    TWML_REQUIRE(described[0] == total && described[1] == missing[id] && described[2] == 0);
  }
}

void Quantized(Input input) {
  const std::string bytes(input.Rest());
  std::vector<float> rows;
  const auto allocate = [&](int64_t n, int64_t cols) {
    // Two bits for each item, or 6 bytes for each row.
    TWML_REQUIRE(n * cols <= 4 * static_cast<int64_t>(bytes.size()));
    rows.resize(n * cols + 1);
    return rows.data();
  };
  if (!DequantizeRows(BytesOf(bytes), Serial, allocate).ok()) return;
  const std::vector<float> first = rows;
  TWML_REQUIRE(DequantizeRows(BytesOf(bytes), Backwards, allocate).ok());
  TWML_REQUIRE(std::memcmp(first.data(), rows.data(), 4 * rows.size()) == 0);
}

std::string Quantize(const std::vector<float>& items, int64_t cols,
                     const QuantizeOptions& options) {
  const int64_t rows = cols == 0 ? 3 : static_cast<int64_t>(items.size()) / cols;
  std::string out;
  const auto allocate = [&](int64_t bytes) {
    out.resize(bytes);
    return reinterpret_cast<uint8_t*>(out.data());
  };
  TWML_REQUIRE(QuantizeRows({items.data(), rows, cols}, options, Backwards, allocate).ok());
  return out;
}

void QuantizedRoundTrips(Input input) {
  constexpr int kBits[] = {8, 4, 3, 2};
  QuantizeOptions options;
  options.bits = kBits[input.Below(4)];
  options.bins = static_cast<int>(input.Below(40));
  options.ratio = static_cast<float>(input.Below(101)) / 100;
  const int64_t cols = input.Below(20);
  std::vector<float> items;
  while (!input.done() && items.size() < 400) items.push_back(input.Take<float>());
  const int64_t rows = cols == 0 ? 3 : static_cast<int64_t>(items.size()) / cols;
  std::vector<float> got(rows * cols + 1);
  const auto allocate = [&](int64_t n, int64_t d) {
    TWML_REQUIRE(n == rows && d == cols);
    return got.data();
  };
  const std::string bytes = Quantize(items, cols, options);
  TWML_REQUIRE(DequantizeRows(BytesOf(bytes), Serial, allocate).ok());
  for (int64_t r = 0; r < rows; ++r) {
    const float* const row = items.data() + r * cols;
    const bool finite = std::all_of(row, row + cols, [](float x) { return std::isfinite(x); });
    if (!finite) TWML_REQUIRE(std::memcmp(row, &got[r * cols], 4 * cols) == 0);
    if (!finite || cols == 0) continue;
    const auto [low, high] = std::minmax_element(row, row + cols);
    // A grid is within the range, except for what float16 rounds.
    const double range = static_cast<double>(*high) - *low;
    const double most = std::max(std::abs(*low), std::abs(*high));
    for (int64_t c = 0; c < cols; ++c) {
      const double error = std::abs(static_cast<double>(got[r * cols + c]) - row[c]);
      TWML_REQUIRE(error <= 1.01 * range + 1e-2 * most + 1e-37);
    }
  }
}

std::vector<std::string> QuantizedSeeds() {
  std::vector<std::string> seeds;
  for (const int bits : {8, 4, 3, 2}) {
    QuantizeOptions options;
    options.bits = bits;
    seeds.push_back(Quantize({1, 2, 3, -4, 0, 0, 0, 0, NAN, 1, 1, INFINITY}, 4, options));
    seeds.push_back(Quantize({}, 0, options));
  }
  return seeds;
}

std::vector<std::string> RowSeeds() {
  Output out;
  out.PutAll<uint8_t>({1, 32, 50, 4}).PutAll<float>({1, 2, 3, -4, 0, 0, 0, 0, NAN, 1, 1, 1e38f});
  return {out.bytes()};
}

// A state of any numbers, and one that lookups made, against a map from ids to rows.
void Lookups(Input input) {
  const bool any = input.Below(4) == 0;
  const int64_t capacity = 2 + input.Below(9);
  const int64_t width = input.Below(2) * 8;
  DynamicLookupOptions options;
  options.min_count = 1 + input.Below(width > 0 ? 3 : 1);
  options.eviction = static_cast<Eviction>(input.Below(4));
  options.max_age = options.eviction == Eviction::kAge ? 1 + input.Below(4) : 0;
  options.pinned = 1 + input.Below(2);
  std::vector<int64_t> keys(capacity), used(capacity), counts(capacity), header(4);
  std::vector<int32_t> index(32, -1);
  std::vector<uint8_t> sketch(kSketchDepth * width);
  if (any) {
    keys = input.Array<int64_t>(capacity);
    for (int64_t& x : used) x = input.Id();
    for (int64_t& x : counts) x = input.Id();
    for (int64_t& x : header) x = input.Id();
    for (int32_t& x : index) x = static_cast<int32_t>(input.Id());
    sketch = input.Array<uint8_t>(kSketchDepth * width);
  }
  const MutableDynamicRows state = {keys, used, counts, index, sketch, header};
  const ConstDynamicRows read = {keys, used, counts, index, sketch, header};
  while (!input.done()) {
    std::vector<int64_t> ids;
    for (int64_t left = input.Below(12); left > 0; --left) ids.push_back(input.Id());
    std::vector<int64_t> rows(ids.size(), -1), found(ids.size(), -1), reset;
    const bool ok = AssignDynamicRows(ids, state, options, Serial, rows.data(), &reset).ok();
    TWML_REQUIRE(ok || any);
    for (size_t i = 0; ok && i < ids.size(); ++i) {
      TWML_REQUIRE(rows[i] >= 0 && rows[i] < capacity);
      if (!any && rows[i] > 0) TWML_REQUIRE(keys[rows[i]] == ids[i]);
    }
    if (FindDynamicRows(ids, read, options, Backwards, found.data()).ok()) {
      for (const int64_t row : found) TWML_REQUIRE(row >= 0 && row < capacity);
      if (!any) TWML_REQUIRE(found == rows);
    } else {
      TWML_REQUIRE(any);
    }
    if (!ok) return;
  }
}

std::vector<std::string> LookupSeeds() {
  std::vector<std::string> seeds;
  for (uint8_t eviction = 0; eviction < 4; ++eviction) {
    Output out;
    out.PutAll<uint8_t>({1, 5, 1, 1, eviction, 1, 0});
    for (int i = 0; i < 90; ++i) out.Put(static_cast<uint8_t>(i * 7 % 13));
    seeds.push_back(out.bytes());
    seeds.push_back(std::string(1, '\0') + out.bytes());
  }
  return seeds;
}

// Reuse distances against a list of ids by their last access.
void Reuse(Input input) {
  ReuseDistances distances(ReuseDistances::kMinIds);
  std::vector<int64_t> stack, hits(3);
  std::map<int64_t, int64_t> want;
  const std::vector<int64_t> sizes = {1, 5, 40};
  while (!input.done() && stack.size() < ReuseDistances::kMinIds) {
    const std::vector<int64_t> ids = {input.Id(), input.Id()};
    distances.Add(ids);
    for (const int64_t id : ids) {
      const auto at = std::find(stack.begin(), stack.end(), id);
      if (at != stack.end()) {
        const int64_t distance = at - stack.begin();
        for (const int64_t size : sizes) want[size] += distance < size;
        stack.erase(at);
      }
      stack.insert(stack.begin(), id);
    }
  }
  if (static_cast<int64_t>(stack.size()) > ReuseDistances::kMinIds) return;
  distances.Hits(sizes, hits.data());
  for (size_t i = 0; i < sizes.size(); ++i) TWML_REQUIRE(hits[i] == want[sizes[i]]);
  TWML_REQUIRE(distances.distinct_ids() == static_cast<int64_t>(stack.size()));
  TWML_REQUIRE(distances.Quantile(0.5) >= -1);
}

std::vector<std::string> AnyBytes() {
  return {std::string("\1\3\1\0\2\5\5\1\4\1\3\2\1\7\2\1", 16)};
}

}  // namespace

std::vector<Target> StateTargets() {
  return {{"messages", Messages, MessageSeeds},
          {"message_round_trips", RoundTrips, BatchSeeds},
          {"sketch_states", Sketches, SketchSeeds},
          {"sketch_streams", Streams, AnyBytes},
          {"quantized_rows", Quantized, QuantizedSeeds},
          {"quantized_round_trips", QuantizedRoundTrips, RowSeeds},
          {"dynamic_lookups", Lookups, LookupSeeds},
          {"reuse_distances", Reuse, AnyBytes}};
}

}  // namespace twml::fuzz
