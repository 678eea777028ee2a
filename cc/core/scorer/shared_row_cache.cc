#include "cc/core/scorer/shared_row_cache.h"

#include <algorithm>
#include <cstring>

#include "cc/core/parallel.h"

namespace twml::scorer {
namespace {

constexpr int64_t kMaxParts = 64;
constexpr int64_t kLeastPlaces = 1024;  // of a part: with fewer, they would not be equally full

}  // namespace

SharedRowCache::SharedRowCache(int64_t bytes, int64_t row_bytes) : row_bytes_(row_bytes) {
  const int64_t of_set = BytesFor(RowCache::kWays, row_bytes);
  const int64_t sets = std::max<int64_t>(1, bytes / of_set);
  const int64_t parts = std::clamp<int64_t>(sets * RowCache::kWays / kLeastPlaces, 1, kMaxParts);
  for (int64_t i = 0; i < parts; ++i) {
    const int64_t places = (sets * (i + 1) / parts - sets * i / parts) * RowCache::kWays;
    parts_.push_back(std::make_unique<Part>(places));
    parts_.back()->rows.reset(new char[static_cast<size_t>(places * row_bytes)]);
  }
}

int64_t SharedRowCache::num_places() const {
  int64_t places = 0;
  for (const auto& part : parts_) places += part->cache.num_places();
  return places;
}

int64_t SharedRowCache::BytesFor(int64_t rows, int64_t row_bytes) {
  return RowCache::MemoryBytes(rows) + RowCache::PlacesFor(rows) * row_bytes;
}

int64_t SharedRowCache::bytes() const { return BytesFor(num_places(), row_bytes_); }

size_t SharedRowCache::PartOf(int64_t id) const {
  // The sets of a part depend on the high bits of the hash of `id`, so this takes another one.
  return static_cast<size_t>(hash_(~id) % parts_.size());
}

template <class Body>
void SharedRowCache::ForParts(const std::vector<Row>& rows, const Body& body) {
  for (size_t begin = 0; begin < rows.size();) {
    const size_t part = rows[begin].part;
    size_t end = begin + 1;
    while (end < rows.size() && rows[end].part == part) ++end;
    body(*parts_[part], begin, end);
    begin = end;
  }
}

void SharedRowCache::Find(std::vector<Row>* rows, char* out) {
  for (Row& row : *rows) row.part = PartOf(row.id);
  if (parts_.size() > 1) {
    std::sort(rows->begin(), rows->end(), [](const Row& a, const Row& b) {
      return a.part != b.part ? a.part < b.part : a.slot < b.slot;
    });
  }
  size_t missing = 0;
  ForParts(*rows, [&](Part& part, size_t begin, size_t end) {
    std::lock_guard<std::mutex> lock(part.mu);
    part.cache.Begin(true);
    part.ids.clear();
    for (size_t i = begin; i < end; ++i) part.ids.push_back((*rows)[i].id);
    part.places.resize(part.ids.size());
    part.cache.Find<int64_t>(part.ids, Serial, part.places.data());
    for (size_t i = begin; i < end; ++i) {
      const int64_t place = part.places[i - begin];
      if (place == RowCache::kNoRow) {
        (*rows)[missing++] = (*rows)[i];
        continue;
      }
      std::memcpy(out + (*rows)[i].slot * row_bytes_, part.rows.get() + place * row_bytes_,
                  static_cast<size_t>(row_bytes_));
    }
  });
  rows->resize(missing);
}

void SharedRowCache::Insert(const std::vector<Row>& rows, const char* from) {
  ForParts(rows, [&](Part& part, size_t begin, size_t end) {
    std::lock_guard<std::mutex> lock(part.mu);
    part.cache.Begin(false);
    // Rows that another request has inserted meanwhile stay.
    const int64_t room = part.cache.num_places();
    part.ids.clear();
    part.places.clear();
    for (size_t i = begin; i < end && static_cast<int64_t>(part.ids.size()) < room; ++i) {
      if (part.cache.Peek(rows[i].id) != RowCache::kNoRow) continue;
      part.ids.push_back(rows[i].id);
      part.places.push_back(rows[i].slot);
    }
    // It cannot fail: nothing is pinned, and there are at most as many ids as places.
    if (!part.cache.Place(part.ids, &part.placed).ok()) return;
    for (size_t i = 0; i < part.placed.size(); ++i) {
      std::memcpy(part.rows.get() + part.placed[i].place * row_bytes_,
                  from + part.places[i] * row_bytes_, static_cast<size_t>(row_bytes_));
    }
  });
}

}  // namespace twml::scorer
