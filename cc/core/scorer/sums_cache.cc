#include "cc/core/scorer/sums_cache.h"

#include <utility>

#include "cc/core/keyed_hash.h"
#include "cc/core/siphash.h"

namespace twml::scorer {
namespace {

constexpr int64_t kParts = 16;
// Of an entry beside its key and its sum: nodes of the list and of the hash table, and what an
// allocation takes.
constexpr int64_t kEntryBytes = 176;

void WriteKey(const SumTerms& terms, std::string* key) {
  const int64_t head[] = {terms.table, terms.values == nullptr ? -1 - terms.n : terms.n};
  key->assign(reinterpret_cast<const char*>(head), sizeof(head));
  key->append(reinterpret_cast<const char*>(terms.ids), static_cast<size_t>(terms.n) * 8);
  if (terms.values != nullptr) {
    key->append(reinterpret_cast<const char*>(terms.values), static_cast<size_t>(terms.n) * 4);
  }
}

}  // namespace

size_t SumsCache::Hash::operator()(std::string_view key) const {
  static const SipKey process_key = {ProcessHashKey(), ~ProcessHashKey()};
  return SipHash24(process_key, reinterpret_cast<const uint8_t*>(key.data()),
                   static_cast<int64_t>(key.size()));
}

SumsCache::SumsCache(int64_t bytes) : bytes_of_part_(bytes / kParts) {
  for (int64_t i = 0; i < kParts; ++i) parts_.push_back(std::make_unique<Part>());
}

int64_t SumsCache::BytesOf(const Entry& entry) {
  return kEntryBytes + static_cast<int64_t>(entry.key.capacity()) +
         static_cast<int64_t>(entry.sum.capacity() * sizeof(float));
}

SumsCache::Part& SumsCache::PartOf(std::string_view key) {
  // The table of a part uses the low bits of the hash.
  return *parts_[(Hash()(key) >> 32) % parts_.size()];
}

bool SumsCache::Find(const SumTerms& terms, std::string* key, std::vector<float>* out) {
  WriteKey(terms, key);
  Part& part = PartOf(*key);
  std::lock_guard<std::mutex> lock(part.mu);
  const auto found = part.by_key.find(*key);
  if (found == part.by_key.end()) return false;
  part.entries.splice(part.entries.begin(), part.entries, found->second);
  out->insert(out->end(), found->second->sum.begin(), found->second->sum.end());
  return true;
}

void SumsCache::Insert(const SumTerms& terms, const float* sum, int64_t dim, std::string* key) {
  WriteKey(terms, key);
  std::list<Entry> made;
  made.push_back({*key, std::vector<float>(sum, sum + dim)});
  const int64_t bytes = BytesOf(made.front());
  if (bytes > bytes_of_part_) return;
  Part& part = PartOf(*key);
  std::list<Entry> removed;  // is freed after the lock
  std::lock_guard<std::mutex> lock(part.mu);
  if (part.by_key.count(*key) > 0) return;
  while (part.bytes + bytes > bytes_of_part_) {
    const auto last = std::prev(part.entries.end());
    part.by_key.erase(last->key);
    part.bytes -= BytesOf(*last);
    removed.splice(removed.end(), part.entries, last);
  }
  part.by_key.emplace(made.front().key, made.begin());
  part.entries.splice(part.entries.begin(), made);
  part.bytes += bytes;
}

int64_t SumsCache::bytes() const {
  int64_t bytes = 0;
  for (const auto& part : parts_) {
    std::lock_guard<std::mutex> lock(part->mu);
    bytes += part->bytes;
  }
  return bytes;
}

}  // namespace twml::scorer
