#include "cc/core/scorer/fetched_rows.h"

namespace twml::scorer {

void RowsOfTable::Begin(int64_t num_blocks) {
  entries_.clear();
  sum_places_.clear();
  distinct_.clear();
  sums.clear();
  starts_.assign(static_cast<size_t>(num_blocks), Start{0, 0});
}

void RowsOfTable::BeginBlock(int64_t block) {
  starts_[block] = {num_entries(), static_cast<int64_t>(sum_places_.size())};
}

void RowsOfTable::Number() {
  size_t capacity = index_.size();
  while (capacity < 2 * entries_.size()) capacity = capacity == 0 ? 64 : 2 * capacity;
  if (++stamp_ == 0 || capacity > index_.size()) {
    stamp_ = 1;
    index_.assign(capacity, Slot{0, 0, 0});
  }
  const uint64_t mask = capacity - 1;
  for (int64_t& entry : entries_) {
    uint64_t at = hash_(entry);
    while (index_[at & mask].stamp == stamp_ && index_[at & mask].id != entry) ++at;
    Slot& slot = index_[at & mask];
    if (slot.stamp != stamp_) {
      slot = {entry, static_cast<uint32_t>(distinct_.size()), stamp_};
      distinct_.push_back(entry);
    }
    entry = slot.number;
  }
}

int64_t RowsOfTable::bytes() const {
  return rows.size() + static_cast<int64_t>(sums.capacity() * sizeof(float) +
                                            missing.capacity() * sizeof(missing[0]) +
                                            index_.capacity() * sizeof(Slot) +
                                            8 * (entries_.capacity() + distinct_.capacity()));
}

void FetchedRows::Begin(int64_t num_tables, int64_t num_blocks) {
  tables.resize(static_cast<size_t>(num_tables));
  for (RowsOfTable& table : tables) table.Begin(num_blocks);
}

void FetchedRows::BeginBlock(int64_t block) {
  for (RowsOfTable& table : tables) table.BeginBlock(block);
}

int64_t FetchedRows::bytes() const {
  int64_t bytes = blocks.size();
  for (const RowsOfTable& table : tables) bytes += table.bytes();
  return bytes;
}

}  // namespace twml::scorer
