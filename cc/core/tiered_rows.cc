#include "cc/core/tiered_rows.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <utility>

#include "cc/core/csr.h"
#include "cc/core/id_index.h"

namespace twml {
namespace {

constexpr int64_t kCostPerRow = 300;
constexpr int64_t kPieceBytes = int64_t{1} << 20;  // of rows that are moved at once

// Single reads into memory of a scope, which is not left before they are done.
class ScopedReads {
 public:
  explicit ScopedReads(RowStore* store) : store_(store) {}
  ~ScopedReads() { Wait(); }

  // Calls receive(record) on any thread, or sets the error.
  template <class Receive>
  void Read(int64_t id, int* error, Receive receive) {
    Add(1);
    try {
      store_->Read(id, /*urgent=*/true, [this, error, receive](const char* record, int e) {
        if (e == 0) receive(record);
        std::lock_guard<std::mutex> lock(mu_);
        if (e != 0) *error = e;
        if (--left_ == 0) done_.notify_all();
      });
    } catch (...) {
      Add(-1);
      throw;
    }
  }

  void Wait() {
    std::unique_lock<std::mutex> lock(mu_);
    done_.wait(lock, [this] { return left_ == 0; });
  }

 private:
  void Add(int count) {
    std::lock_guard<std::mutex> lock(mu_);
    left_ += count;
  }

  RowStore* const store_;
  std::mutex mu_;
  std::condition_variable done_;
  int64_t left_ = 0;
};

std::string InitialRecord(const std::vector<RowPart>& parts) {
  std::string record;
  for (const RowPart& part : parts) record += part.initial;
  return record;
}

}  // namespace

TieredRows::TieredRows(const TieredRowsOptions& options)
    : options_(options),
      // The rows that leave the cache, and so all statistics, are the same in every run.
      cache_(options.cache_rows, options.policy, KeyedHash(0)),
      ahead_(new RowReadAhead(options.prefetch_rows, &cache_)) {}

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
  OwnedByProcess<RowStore> store;
  TWML_RETURN_IF_ERROR(made->OpenStore(options.path, parts, &store));
  std::string initial = InitialRecord(parts);
  AlignedBuffer records = made->ahead_->RecordsOf(static_cast<int64_t>(initial.size()));
  made->Use(std::move(store), std::move(parts), std::move(initial), std::move(records));
  *rows = std::move(made);
  return Status();
}

void TieredRows::Use(OwnedByProcess<RowStore> store, std::vector<RowPart> parts,
                     std::string initial, AlignedBuffer records) noexcept {
  const auto row_bytes = static_cast<int64_t>(initial.size());
  ahead_->Use(store.get(), std::move(records), row_bytes);
  store_ = std::move(store);
  parts_ = std::move(parts);
  initial_ = std::move(initial);
  row_bytes_ = row_bytes;
}

Status TieredRows::OpenStore(const std::string& path, const std::vector<RowPart>& parts,
                             OwnedByProcess<RowStore>* store) const {
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
  options.fault = options_.fault;
  std::unique_ptr<RowStore> made;
  TWML_RETURN_IF_ERROR(RowStore::Create(path, options, &made));
  store->reset(made.release());
  return Status();
}

Status TieredRows::CheckProcess() const {
  if (process_ == ForkNumber()) return Status();
  return FileStatus(options_.path,
                    " is the file of a table of the process that this one was forked from: after "
                    "fork() a process must open a table of its own");
}

TieredRows::~TieredRows() {
  if (process_ != ForkNumber()) return;
  std::unique_lock<std::mutex> lock(mu_);
  ahead_->Clear();
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
  TWML_RETURN_IF_ERROR(CheckProcess());
  if (parts.empty() || parts[0].bytes != parts_[0].bytes) {
    return Invalid("the first part must have ", parts_[0].bytes, " bytes");
  }
  std::unique_lock<std::mutex> lock(mu_);
  ahead_->Clear();
  // The new file is complete before anything of the old one changes.
  OwnedByProcess<RowStore> store;
  TWML_RETURN_IF_ERROR(OpenStore(options_.path + ".new", parts, &store));
  std::string initial = InitialRecord(parts);
  AlignedBuffer records = ahead_->RecordsOf(static_cast<int64_t>(initial.size()));
  const int64_t kept = parts_[0].bytes, piece = std::max<int64_t>(1, kPieceBytes / kept);
  for (int64_t begin = 0; begin < options_.num_rows; begin += piece) {
    const int64_t count = std::min(piece, options_.num_rows - begin);
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
  Use(std::move(store), std::move(parts), std::move(initial), std::move(records));
  return Status();
}

template <class Id>
Status TieredRows::Map(Span<const Id> ids, Cache cache, bool counts, bool changes,
                       const ParallelFor& parallel_for, Id* rows) {
  TWML_RETURN_IF_ERROR(CheckProcess());
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
  ahead_->BeginLookup();
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

// Takes rows out of the cache whose content is not there.
void TieredRows::UndoAll(const std::vector<RowCache::Placed>& placed) {
  for (size_t i = placed.size(); i-- > 0;) cache_.Undo(placed[i], /*restore=*/false);
}

// Stores the changed rows among those that leave the cache. After an error or an exception all of
// `placed` is undone.
Status TieredRows::Evict(const std::vector<RowCache::Placed>& placed, Cache cache) {
  std::vector<int64_t> ids, places;
  std::vector<size_t> which;
  int64_t stored = 0;
  const auto undo = [&] {
    statistics_.written_back += stored;
    const size_t first_kept = stored == 0 ? 0 : which[stored];
    for (size_t i = placed.size(); i-- > 0;) {
      // A row that was stored is no longer needed here; one that is not dirty is in the file.
      cache_.Undo(placed[i], /*restore=*/i >= first_kept || !placed[i].old_is_dirty);
    }
  };
  try {
    for (size_t i = 0; i < placed.size(); ++i) {
      if (!placed[i].old_is_dirty) continue;
      ids.push_back(placed[i].old_id);
      places.push_back(placed[i].place);
      which.push_back(i);
    }
    const Status status = store_->Append(
        ids, [&](int64_t i, char* record) { Gather(cache, places[i], record); }, &stored);
    if (!status.ok()) {
      undo();
      return status;
    }
  } catch (...) {
    undo();
    throw;
  }
  statistics_.written_back += stored;
  for (const RowCache::Placed& each : placed) {
    if (char* const record = ahead_->Keep(each.old_id, each.place)) {
      Gather(cache, each.place, record);
    }
  }
  return Status();
}

// Brings the rows that entered the cache. After an error those that could not be read are not in
// the cache; after an exception none of them is.
Status TieredRows::Load(const std::vector<RowCache::Placed>& placed, Cache cache,
                        const ParallelFor& parallel_for, std::unique_lock<std::mutex>* lock) {
  struct Waiting {
    int64_t place;
    int slot;
    size_t number;
  };
  std::vector<Waiting> waiting;
  std::vector<int> errors;
  try {
    errors.resize(placed.size());
    ScopedReads reads(store_.get());
    const auto read = [&](size_t number) {
      reads.Read(placed[number].id, &errors[number],
                 [this, cache, place = placed[number].place](const char* record) {
                   Scatter(record, cache, place);
                 });
    };
    for (size_t i = 0; i < placed.size(); ++i) {
      const int64_t id = placed[i].id, place = placed[i].place;
      waiting.push_back({place, -1, i});
      const int slot = waiting.back().slot = ahead_->Take(id, place);
      if (slot >= 0) continue;
      waiting.pop_back();
      if (store_->Has(id)) {
        read(i);
      } else {
        Scatter(initial_.data(), cache, place);
      }
    }
    statistics_.prefetched += static_cast<int64_t>(waiting.size());
    ahead_->EndTaking();
    while (!waiting.empty()) {
      const int64_t arrivals = ahead_->arrivals();
      const auto ready = std::partition(waiting.begin(), waiting.end(), [&](const Waiting& each) {
        return !ahead_->Ready(each.slot);
      });
      lock->unlock();
      const int64_t first = ready - waiting.begin();
      parallel_for(waiting.end() - ready, kCostPerRow, [&](int64_t begin, int64_t end) {
        for (int64_t i = first + begin; i < first + end; ++i) {
          Scatter(ahead_->RecordAt(waiting[i].slot), cache, waiting[i].place);
        }
      });
      if (ready == waiting.end()) ahead_->WaitForArrival(arrivals);
      lock->lock();
      for (int64_t count = waiting.end() - ready; count > 0; --count, waiting.pop_back()) {
        const Waiting& each = waiting.back();
        const bool failed = ahead_->Failed(each.slot);
        ahead_->Release(each.slot);
        if (failed) read(each.number);  // which gives the error, if it fails again
      }
      ahead_->Issue();
    }
    lock->unlock();
    reads.Wait();
    lock->lock();
  } catch (...) {  // The reads are done.
    if (!lock->owns_lock()) lock->lock();
    for (const Waiting& each : waiting) {
      if (each.slot >= 0) ahead_->PutBack(each.slot);
    }
    UndoAll(placed);
    throw;
  }
  int error = 0;
  for (size_t i = 0; i < placed.size(); ++i) {
    if (errors[i] == 0) continue;
    error = errors[i];
    cache_.Undo(placed[i], /*restore=*/false);
  }
  if (error == 0) return Status();
  return FileStatus(store_->path(), " cannot be read: ", DescribeRowError(error));
}

template <class Id>
Status TieredRows::Prefetch(Span<const Id> ids) {
  TWML_RETURN_IF_ERROR(CheckProcess());
  TWML_RETURN_IF_ERROR(CheckIds(ids, options_.num_rows, Serial));
  if (ahead_->empty()) return Status();
  IdIndex distinct;
  std::vector<int64_t> unique;
  for (const Id id : ids) {
    if (distinct.FindOrAdd(id) == static_cast<int64_t>(unique.size())) unique.push_back(id);
  }
  std::lock_guard<std::mutex> lock(mu_);
  ahead_->Announce(unique);
  return Status();
}
template Status TieredRows::Prefetch<int32_t>(Span<const int32_t>);
template Status TieredRows::Prefetch<int64_t>(Span<const int64_t>);

Status TieredRows::ReadPart(int64_t part, int64_t begin, int64_t count, Cache cache, char* values) {
  TWML_RETURN_IF_ERROR(CheckProcess());
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
  TWML_RETURN_IF_ERROR(CheckProcess());
  TWML_RETURN_IF_ERROR(CheckIds(ids, options_.num_rows, Serial));
  const auto write = [&](const char* record, int64_t i) {
    for (size_t p = 0; p < parts.size(); ++p) {
      std::memcpy(parts[p] + i * parts_[p].bytes, record, parts_[p].bytes);
      record += parts_[p].bytes;
    }
  };
  int failed = 0;
  std::string record(row_bytes_, '\0');
  ScopedReads reads(store_.get());
  std::unique_lock<std::mutex> lock(mu_);
  for (int64_t i = 0; i < ids.size(); ++i) {
    const int64_t place = cache_.Peek(ids[i]);
    if (place != RowCache::kNoRow) {
      Gather(cache, place, record.data());
      write(record.data(), i);
    } else if (!store_->Has(ids[i])) {
      write(initial_.data(), i);
    } else {
      reads.Read(ids[i], &failed, [&write, i](const char* from) { write(from, i); });
    }
  }
  lock.unlock();
  reads.Wait();
  if (failed == 0) return Status();
  return FileStatus(store_->path(), " cannot be read: ", DescribeRowError(failed));
}

Status TieredRows::WritePart(int64_t part, int64_t begin, int64_t count, const char* values,
                             Cache cache) {
  TWML_RETURN_IF_ERROR(CheckProcess());
  const int64_t bytes = parts_[part].bytes;
  int64_t offset = 0;
  for (int64_t p = 0; p < part; ++p) offset += parts_[p].bytes;
  TWML_RETURN_IF_ERROR(store_->RetryWrites());
  std::unique_lock<std::mutex> lock(mu_);
  ahead_->Clear();
  const int64_t piece = std::max<int64_t>(1, kPieceBytes / row_bytes_);
  for (int64_t start = 0; start < count; start += piece) {
    const int64_t number = std::min(piece, count - start);
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
      if (place != RowCache::kNoRow) {
        cached.push_back(place);
      } else {
        std::memcpy(records.data() + i * row_bytes_ + offset, values + (start + i) * bytes, bytes);
        stored_ids.push_back(id);
        positions.push_back(i);
      }
    }
    MarkChanged(cached);
    for (const int64_t place : cached) {
      const int64_t i = cache_.id_at(place) - begin;
      std::memcpy(cache[part] + place * bytes, values + i * bytes, bytes);
    }
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

Status TieredRows::GetStatistics(Statistics* statistics) const {
  TWML_RETURN_IF_ERROR(CheckProcess());
  std::lock_guard<std::mutex> lock(mu_);  // SetParts replaces the store
  *statistics = statistics_;
  statistics->prefetches = ahead_->num_reads();
  statistics->store = store_->statistics();
  statistics->direct = store_->direct();
  statistics->uses_io_uring = store_->uses_io_uring();
  return Status();
}

}  // namespace twml
