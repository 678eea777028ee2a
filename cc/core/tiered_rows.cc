#include "cc/core/tiered_rows.h"

#include <errno.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "cc/core/csr.h"
#include "cc/core/hash.h"
#include "cc/core/id_index.h"

namespace twml {
namespace {

constexpr int64_t kCostPerRow = 300;
// Announcements that no lookup has come to after so many lookups are forgotten.
constexpr int64_t kMaxAge = 64;
constexpr int64_t kPiece = 4096;  // rows that are moved at once

uint64_t PowerOfTwo(int64_t at_least) {
  uint64_t n = 1;
  while (n < static_cast<uint64_t>(at_least)) n *= 2;
  return n;
}

std::string InitialRecord(const std::vector<RowPart>& parts) {
  std::string record;
  for (const RowPart& part : parts) record += part.initial;
  return record;
}

}  // namespace

TieredRows::StagedIndex::StagedIndex(int64_t capacity)
    : items_(PowerOfTwo(2 * capacity + 1), Item{0, -1}), mask_(items_.size() - 1) {}

int TieredRows::StagedIndex::Find(int64_t id) const {
  for (uint64_t at = Mix64(static_cast<uint64_t>(id));; ++at) {
    const Item& item = items_[at & mask_];
    if (item.slot < 0 || item.id == id) return item.slot;
  }
}

void TieredRows::StagedIndex::Insert(int64_t id, int slot) {
  uint64_t at = Mix64(static_cast<uint64_t>(id));
  while (items_[at & mask_].slot >= 0) ++at;
  items_[at & mask_] = {id, slot};
}

void TieredRows::StagedIndex::Remove(int64_t id) {
  uint64_t hole = Mix64(static_cast<uint64_t>(id)) & mask_;
  while (items_[hole].id != id || items_[hole].slot < 0) hole = (hole + 1) & mask_;
  for (uint64_t at = (hole + 1) & mask_; items_[at].slot >= 0; at = (at + 1) & mask_) {
    // An item may move to the hole unless its home lies behind the hole.
    const uint64_t home = Mix64(static_cast<uint64_t>(items_[at].id)) & mask_;
    if (((at - home) & mask_) < ((at - hole) & mask_)) continue;
    items_[hole] = items_[at];
    hole = at;
  }
  items_[hole].slot = -1;
}

TieredRows::TieredRows(const TieredRowsOptions& options)
    : options_(options),
      cache_(options.cache_rows, options.policy),
      announced_(options.prefetch_rows > 0 ? cache_.num_places() : 0),
      staged_(new Staged[options.prefetch_rows]),
      staged_index_(options.prefetch_rows) {
  for (int64_t i = options.prefetch_rows - 1; i >= 0; --i) free_slots_.push_back(i);
}

Status TieredRows::Create(const TieredRowsOptions& options, std::vector<RowPart> parts,
                          std::unique_ptr<TieredRows>* rows) {
  if (options.cache_rows < 1)
    return Invalid("cache_rows must be positive, got ", options.cache_rows);
  if (options.prefetch_rows < 0 || options.prefetch_rows > INT32_MAX) {
    return Invalid("prefetch_rows must be in [0, 2^31), got ", options.prefetch_rows);
  }
  if (options.depth < 1 || options.depth > 4096) {
    return Invalid("depth must be in [1, 4096], got ", options.depth);
  }
  std::unique_ptr<TieredRows> made(new TieredRows(options));
  std::unique_ptr<RowStore> store;
  TWML_RETURN_IF_ERROR(made->OpenStore(options.path, parts, &store));
  made->Use(std::move(store), std::move(parts));
  *rows = std::move(made);
  return Status();
}

void TieredRows::Use(std::unique_ptr<RowStore> store, std::vector<RowPart> parts) {
  std::string initial = InitialRecord(parts);
  staged_records_.resize(options_.prefetch_rows * static_cast<int64_t>(initial.size()));
  // Nothing below can fail.
  store_ = std::move(store);
  parts_ = std::move(parts);
  initial_ = std::move(initial);
  row_bytes_ = static_cast<int64_t>(initial_.size());
}

Status TieredRows::OpenStore(const std::string& path, const std::vector<RowPart>& parts,
                             std::unique_ptr<RowStore>* store) const {
  for (const RowPart& part : parts) {
    if (static_cast<int64_t>(part.initial.size()) == part.bytes) continue;
    return Invalid("the initial part of a record must have ", part.bytes, " bytes, got ",
                   part.initial.size());
  }
  RowStoreOptions options;
  options.num_rows = options_.num_rows;
  options.row_bytes = static_cast<int64_t>(InitialRecord(parts).size());
  options.direct = options_.direct;
  options.use_io_uring = options_.use_io_uring;
  options.depth = options_.depth;
  return RowStore::Create(path, options, store);
}

TieredRows::~TieredRows() {
  std::unique_lock<std::mutex> lock(mu_);
  DropPrefetched();
}

int64_t TieredRows::MemoryBytes(const TieredRowsOptions& options, int64_t row_bytes) {
  RowStoreOptions store;
  store.num_rows = options.num_rows;
  store.row_bytes = row_bytes;
  store.depth = options.depth;
  const auto index = static_cast<int64_t>(PowerOfTwo(2 * options.prefetch_rows + 1)) * 16;
  const int64_t staged = options.prefetch_rows * (row_bytes + 32 + 8) + index;
  const int64_t announced =
      options.prefetch_rows > 0 ? 8 * RowCache::PlacesFor(options.cache_rows) : 0;
  return RowCache::MemoryBytes(options.cache_rows) + RowStore::MemoryBytes(store) + staged +
         announced;
}

void TieredRows::Gather(Cache cache, int64_t place, char* record) const {
  for (int64_t p = 0; p < cache.size(); ++p) {
    std::memcpy(record, cache[p] + place * parts_[p].bytes, parts_[p].bytes);
    record += parts_[p].bytes;
  }
}

void TieredRows::Scatter(const char* record, Cache cache, int64_t place) const {
  for (int64_t p = 0; p < cache.size(); ++p) {
    std::memcpy(cache[p] + place * parts_[p].bytes, record, parts_[p].bytes);
    record += parts_[p].bytes;
  }
}

Status TieredRows::SetParts(std::vector<RowPart> parts) {
  if (parts.empty() || parts[0].bytes != parts_[0].bytes) {
    return Invalid("the first part must have ", parts_[0].bytes, " bytes");
  }
  std::unique_lock<std::mutex> lock(mu_);
  DropPrefetched();
  // The new file is complete before anything of the old one changes.
  std::unique_ptr<RowStore> store;
  TWML_RETURN_IF_ERROR(OpenStore(options_.path + ".new", parts, &store));
  const std::string initial = InitialRecord(parts);
  const int64_t kept = parts_[0].bytes;
  for (int64_t begin = 0; begin < options_.num_rows; begin += kPiece) {
    const int64_t count = std::min(kPiece, options_.num_rows - begin);
    std::vector<int64_t> ids;
    std::vector<char> weights;
    weights.reserve(count * kept);
    TWML_RETURN_IF_ERROR(store_->ReadRange(begin, count, [&](int64_t row, const char* record) {
      ids.push_back(row);
      weights.insert(weights.end(), record, record + kept);
    }));
    int64_t stored;
    TWML_RETURN_IF_ERROR(store->Append(
        ids,
        [&](int64_t i, char* record) {
          std::memcpy(record, initial.data(), initial.size());
          std::memcpy(record, weights.data() + i * kept, kept);
        },
        &stored));
  }
  TWML_RETURN_IF_ERROR(store->Replace(store_.get()));
  Use(std::move(store), std::move(parts));
  return Status();
}

template <class Id>
Status TieredRows::Map(Span<const Id> ids, Cache cache, bool counts, bool changes,
                       const ParallelFor& parallel_for, Id* rows) {
  TWML_RETURN_IF_ERROR(CheckIds(ids, options_.num_rows, parallel_for));
  TWML_RETURN_IF_ERROR(store_->RetryWrites());
  std::unique_lock<std::mutex> lock(mu_);
  std::vector<int64_t> places(ids.size());
  cache_.Begin(counts);
  cache_.Find(ids, parallel_for, places.data());
  std::vector<int64_t> missing;
  IdIndex numbers;
  for (int64_t k = 0; k < ids.size(); ++k) {
    if (places[k] != RowCache::kNoRow) continue;
    const int64_t number = numbers.FindOrAdd(ids[k]);
    if (number == static_cast<int64_t>(missing.size())) missing.push_back(ids[k]);
  }
  std::vector<RowCache::Placed> placed;
  TWML_RETURN_IF_ERROR(cache_.Place(missing, &placed));
  ++lookups_;
  if (counts) {
    ++statistics_.lookups;
    statistics_.rows += cache_.num_used();
    statistics_.misses += static_cast<int64_t>(missing.size());
  }
  if (!placed.empty()) {
    TWML_RETURN_IF_ERROR(Evict(placed, cache));
    TWML_RETURN_IF_ERROR(Load(placed, cache, parallel_for, &lock));
    for (int64_t k = 0; k < ids.size(); ++k) {
      if (places[k] == RowCache::kNoRow) places[k] = placed[numbers.Find(ids[k])].place;
    }
  }
  if (changes) MarkChanged(places);
  std::copy(places.begin(), places.end(), rows);
  return Status();
}
template Status TieredRows::Map<int32_t>(Span<const int32_t>, Cache, bool, bool, const ParallelFor&,
                                         int32_t*);
template Status TieredRows::Map<int64_t>(Span<const int64_t>, Cache, bool, bool, const ParallelFor&,
                                         int64_t*);

void TieredRows::MarkChanged(Span<const int64_t> places) {
  std::vector<int64_t> outdated;
  for (const int64_t place : places) {
    if (cache_.dirty(place)) continue;
    cache_.set_dirty(place, true);
    outdated.push_back(cache_.id_at(place));
  }
  store_->Forget(outdated);
}

// Stores the changed rows among those that leave the cache. After an error all of `placed` is
// undone.
Status TieredRows::Evict(const std::vector<RowCache::Placed>& placed, Cache cache) {
  std::vector<int64_t> ids, places;
  std::vector<size_t> which;
  for (size_t i = 0; i < placed.size(); ++i) {
    if (!placed[i].old_is_dirty) continue;
    ids.push_back(placed[i].old_id);
    places.push_back(placed[i].place);
    which.push_back(i);
  }
  int64_t stored = 0;
  const Status status = store_->Append(
      ids, [&](int64_t i, char* record) { Gather(cache, places[i], record); }, &stored);
  statistics_.written_back += stored;
  if (!status.ok()) {
    const size_t first_kept = which[stored];
    for (size_t i = placed.size(); i-- > 0;) {
      // A row that was stored is no longer needed here; one that is not dirty is in the file.
      cache_.Undo(placed[i], /*restore=*/i >= first_kept || !placed[i].old_is_dirty);
    }
    return status;
  }
  if (announced_.empty()) return Status();
  for (const RowCache::Placed& each : placed) {
    // A row that an announced lookup needs stays in memory.
    const int64_t announced = std::exchange(announced_[each.place], 0);
    if (each.old_id == RowCache::kNoRow || announced <= consumed_) continue;
    if (announcements_.empty() || staged_index_.Find(each.old_id) >= 0) continue;
    const int slot = TakeSlot(each.old_id, announced, announced);
    if (slot < 0) continue;
    Gather(cache, each.place, StagedRecord(slot));
    staged_[slot].state = kReady;
  }
  return Status();
}

// Brings the rows that entered the cache. After an error those that could not be read are not in
// the cache.
Status TieredRows::Load(const std::vector<RowCache::Placed>& placed, Cache cache,
                        const ParallelFor& parallel_for, std::unique_lock<std::mutex>* lock) {
  struct Waiting {
    int64_t place;
    int slot;
    size_t number;
  };
  std::vector<Waiting> waiting;
  std::vector<int> errors(placed.size(), 0);
  int64_t left = 0;  // reads of rows that were not read ahead; guarded by ready_mu_
  int64_t newest = consumed_;
  for (size_t i = 0; i < placed.size(); ++i) {
    const int64_t id = placed[i].id, place = placed[i].place;
    const int slot = options_.prefetch_rows > 0 ? staged_index_.Find(id) : -1;
    if (slot >= 0) {
      waiting.push_back({place, slot, i});
      staged_[slot].used = true;
      announced_[place] = staged_[slot].last;
      newest = std::max(newest, staged_[slot].first);
    } else if (!store_->Has(id)) {
      Scatter(initial_.data(), cache, place);
    } else {
      {
        std::lock_guard<std::mutex> guard(ready_mu_);
        ++left;
      }
      store_->Read(id, /*urgent=*/true, [&, i, place](const char* record, int error) {
        if (error == 0) Scatter(record, cache, place);
        std::lock_guard<std::mutex> guard(ready_mu_);
        errors[i] = error;
        ++completed_;
        --left;
        ready_.notify_all();
      });
    }
  }
  statistics_.prefetched += static_cast<int64_t>(waiting.size());
  DropBefore(newest);
  while (!waiting.empty()) {
    int64_t completed;
    {
      std::lock_guard<std::mutex> guard(ready_mu_);
      completed = completed_;
    }
    const auto ready = std::stable_partition(
        waiting.begin(), waiting.end(),
        [&](const Waiting& each) { return staged_[each.slot].state.load() == kReading; });
    lock->unlock();
    const int64_t first = ready - waiting.begin();
    parallel_for(waiting.end() - ready, kCostPerRow, [&](int64_t begin, int64_t end) {
      for (int64_t i = first + begin; i < first + end; ++i) {
        Scatter(StagedRecord(waiting[i].slot), cache, waiting[i].place);
      }
    });
    if (ready == waiting.end()) {
      std::unique_lock<std::mutex> guard(ready_mu_);
      ready_.wait(guard, [&] { return completed_ != completed; });
    }
    lock->lock();
    for (auto each = ready; each != waiting.end(); ++each) {
      const Staged& read = staged_[each->slot];
      if (read.state.load() == kFailed) errors[each->number] = read.error;
      ReleaseSlot(each->slot);
    }
    waiting.erase(ready, waiting.end());
    IssuePrefetches();
  }
  lock->unlock();
  {
    std::unique_lock<std::mutex> guard(ready_mu_);
    ready_.wait(guard, [&] { return left == 0; });
  }
  lock->lock();
  int error = 0;
  for (size_t i = 0; i < placed.size(); ++i) {
    if (errors[i] == 0) continue;
    error = errors[i];
    cache_.Undo(placed[i], /*restore=*/false);
  }
  if (error == 0) return Status();
  return FileStatus(store_->path(), " cannot be read: ", DescribeRowError(error));
}

int TieredRows::TakeSlot(int64_t id, int64_t first, int64_t last) {
  CollectAbandoned();
  if (free_slots_.empty()) return -1;
  const int slot = free_slots_.back();
  free_slots_.pop_back();
  staged_[slot].id = id;
  staged_[slot].first = first;
  staged_[slot].last = last;
  staged_[slot].state = kReading;
  staged_index_.Insert(id, slot);
  for (auto each = announcements_.rbegin(); each != announcements_.rend(); ++each) {
    if (each->number <= last || std::next(each) == announcements_.rend()) {
      each->staged.push_back(slot);
      break;
    }
  }
  return slot;
}

void TieredRows::ReleaseSlot(int slot) {
  if (staged_[slot].id != RowCache::kNoRow) staged_index_.Remove(staged_[slot].id);
  staged_[slot].id = RowCache::kNoRow;
  staged_[slot].used = false;
  if (staged_[slot].state.load() == kReading) {
    abandoned_.push_back(slot);  // its memory is still written
  } else {
    free_slots_.push_back(slot);
  }
}

void TieredRows::CollectAbandoned() {
  if (!free_slots_.empty()) return;
  const auto done = std::partition(abandoned_.begin(), abandoned_.end(), [&](int slot) {
    return staged_[slot].state.load() == kReading;
  });
  free_slots_.insert(free_slots_.end(), done, abandoned_.end());
  abandoned_.erase(done, abandoned_.end());
}

// Forgets the announcements before one that a lookup has come to, and those that are too old.
void TieredRows::DropBefore(int64_t number) {
  consumed_ = std::max(consumed_, number);
  while (!announcements_.empty() && (announcements_.front().number < consumed_ ||
                                     lookups_ - announcements_.front().lookup > kMaxAge)) {
    const Announcement dropped = std::move(announcements_.front());
    announcements_.pop_front();
    for (const int slot : dropped.staged) {
      Staged& each = staged_[slot];
      // The slot may have been released, and may have another row.
      if (each.id == RowCache::kNoRow || each.first > dropped.number || each.used) continue;
      if (each.last > dropped.number && !announcements_.empty()) {
        announcements_.front().staged.push_back(slot);
      } else {
        ReleaseSlot(slot);
      }
    }
  }
}

void TieredRows::IssuePrefetches() {
  for (Announcement& announcement : announcements_) {
    while (!announcement.waiting.empty()) {
      CollectAbandoned();
      if (free_slots_.empty()) return;
      const int64_t id = announcement.waiting.back();
      announcement.waiting.pop_back();
      const int64_t place = cache_.Peek(id);
      if (place != RowCache::kNoRow) {
        announced_[place] = std::max(announced_[place], announcement.number);
        continue;
      }
      const int known = staged_index_.Find(id);
      if (known >= 0) {
        staged_[known].last = std::max(staged_[known].last, announcement.number);
        continue;
      }
      if (!store_->Has(id)) continue;
      const int slot = TakeSlot(id, announcement.number, announcement.number);
      ++statistics_.prefetches;
      store_->Read(id, /*urgent=*/false, [this, slot](const char* record, int error) {
        if (error == 0) std::memcpy(StagedRecord(slot), record, row_bytes_);
        std::lock_guard<std::mutex> guard(ready_mu_);
        staged_[slot].error = error;
        staged_[slot].state = error == 0 ? kReady : kFailed;
        ++completed_;
        ready_.notify_all();
      });
    }
  }
}

void TieredRows::DropPrefetched() {
  announcements_.clear();
  {
    std::unique_lock<std::mutex> guard(ready_mu_);
    ready_.wait(guard, [&] {
      return std::none_of(staged_.get(), staged_.get() + options_.prefetch_rows,
                          [](const Staged& each) { return each.state.load() == kReading; });
    });
  }
  for (int64_t i = 0; i < options_.prefetch_rows; ++i) {
    if (staged_[i].id != RowCache::kNoRow) ReleaseSlot(static_cast<int>(i));
  }
}

template <class Id>
Status TieredRows::Prefetch(Span<const Id> ids) {
  TWML_RETURN_IF_ERROR(CheckIds(ids, options_.num_rows, Serial));
  if (options_.prefetch_rows == 0) return Status();
  IdIndex distinct;
  std::vector<int64_t> unique;
  for (const Id id : ids) {
    if (distinct.FindOrAdd(id) == static_cast<int64_t>(unique.size())) unique.push_back(id);
  }
  std::lock_guard<std::mutex> lock(mu_);
  DropBefore(consumed_);
  Announcement announcement = {++last_announcement_, lookups_, {}, {}};
  for (const int64_t id : unique) {
    const int64_t place = cache_.Peek(id);
    if (place != RowCache::kNoRow) {
      announced_[place] = announcement.number;
    } else {
      announcement.waiting.push_back(id);
    }
  }
  std::reverse(announcement.waiting.begin(), announcement.waiting.end());
  announcements_.push_back(std::move(announcement));
  IssuePrefetches();
  return Status();
}
template Status TieredRows::Prefetch<int32_t>(Span<const int32_t>);
template Status TieredRows::Prefetch<int64_t>(Span<const int64_t>);

Status TieredRows::ReadPart(int64_t part, int64_t begin, int64_t count, Cache cache, char* values) {
  const int64_t bytes = parts_[part].bytes;
  int64_t offset = 0;
  for (int64_t p = 0; p < part; ++p) offset += parts_[p].bytes;
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(values + i * bytes, initial_.data() + offset, bytes);
  }
  TWML_RETURN_IF_ERROR(store_->ReadRange(begin, count, [&](int64_t row, const char* record) {
    std::memcpy(values + (row - begin) * bytes, record + offset, bytes);
  }));
  std::lock_guard<std::mutex> lock(mu_);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t place = cache_.Peek(begin + i);
    if (place == RowCache::kNoRow) continue;
    std::memcpy(values + i * bytes, cache[part] + place * bytes, bytes);
  }
  return Status();
}

Status TieredRows::ReadRows(Span<const int64_t> ids, Cache cache, const std::vector<char*>& parts) {
  TWML_RETURN_IF_ERROR(CheckIds(ids, options_.num_rows, Serial));
  const auto write = [&](const char* record, int64_t i) {
    for (size_t p = 0; p < parts.size(); ++p) {
      std::memcpy(parts[p] + i * parts_[p].bytes, record, parts_[p].bytes);
      record += parts_[p].bytes;
    }
  };
  int64_t left = 0;  // guarded by ready_mu_, as `failed`
  int failed = 0;
  std::unique_lock<std::mutex> lock(mu_);
  std::string record(row_bytes_, '\0');
  for (int64_t i = 0; i < ids.size(); ++i) {
    const int64_t place = cache_.Peek(ids[i]);
    if (place != RowCache::kNoRow) {
      Gather(cache, place, record.data());
      write(record.data(), i);
    } else if (!store_->Has(ids[i])) {
      write(initial_.data(), i);
    } else {
      {
        std::lock_guard<std::mutex> guard(ready_mu_);
        ++left;
      }
      store_->Read(ids[i], /*urgent=*/true, [&, i](const char* from, int error) {
        if (error == 0) write(from, i);
        std::lock_guard<std::mutex> guard(ready_mu_);
        if (error != 0) failed = error;
        --left;
        ready_.notify_all();
      });
    }
  }
  lock.unlock();
  std::unique_lock<std::mutex> guard(ready_mu_);
  ready_.wait(guard, [&] { return left == 0; });
  if (failed == 0) return Status();
  return FileStatus(store_->path(), " cannot be read: ", DescribeRowError(failed));
}

Status TieredRows::WritePart(int64_t part, int64_t begin, int64_t count, const char* values,
                             Cache cache) {
  const int64_t bytes = parts_[part].bytes;
  int64_t offset = 0;
  for (int64_t p = 0; p < part; ++p) offset += parts_[p].bytes;
  TWML_RETURN_IF_ERROR(store_->RetryWrites());
  std::unique_lock<std::mutex> lock(mu_);
  DropPrefetched();
  for (int64_t start = 0; start < count; start += kPiece) {
    const int64_t number = std::min(kPiece, count - start);
    std::vector<char> records(number * row_bytes_);
    for (int64_t i = 0; i < number; ++i) {
      std::memcpy(records.data() + i * row_bytes_, initial_.data(), row_bytes_);
    }
    if (parts_.size() > 1) {
      const int64_t first = begin + start;
      TWML_RETURN_IF_ERROR(store_->ReadRange(first, number, [&](int64_t row, const char* record) {
        std::memcpy(records.data() + (row - first) * row_bytes_, record, row_bytes_);
      }));
    }
    std::vector<int64_t> cached, stored_ids, positions;
    for (int64_t i = 0; i < number; ++i) {
      const int64_t id = begin + start + i, place = cache_.Peek(id);
      const char* const value = values + (start + i) * bytes;
      if (place != RowCache::kNoRow) {
        std::memcpy(cache[part] + place * bytes, value, bytes);
        cached.push_back(place);
      } else {
        std::memcpy(records.data() + i * row_bytes_ + offset, value, bytes);
        stored_ids.push_back(id);
        positions.push_back(i);
      }
    }
    MarkChanged(cached);
    int64_t stored;
    TWML_RETURN_IF_ERROR(store_->Append(
        stored_ids,
        [&](int64_t i, char* record) {
          std::memcpy(record, records.data() + positions[i] * row_bytes_, row_bytes_);
        },
        &stored));
  }
  return Status();
}

TieredRows::Statistics TieredRows::statistics() const {
  std::lock_guard<std::mutex> lock(mu_);
  Statistics found = statistics_;
  found.store = store_->statistics();
  return found;
}

}  // namespace twml
