#include "cc/core/row_store.h"

#include <errno.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "cc/core/hash.h"

namespace twml {
namespace {

constexpr int64_t kPage = AlignedBuffer::kPage;
constexpr int64_t kMaxSegmentBytes = int64_t{256} << 10;
constexpr int64_t kTargetSegments = 256;
constexpr int64_t kMinSpareSegments = 12;
constexpr int64_t kSpare = 4;                   // one spare segment for so many
constexpr int64_t kMaxGap = int64_t{16} << 10;  // that is read along with its neighbors
constexpr int64_t kMaxRun = int64_t{256} << 10;

int64_t RoundUp(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// A hash of bytes. Four sums that do not wait for each other take 32 bytes at a time.
uint32_t Checksum(const char* data, int64_t bytes, uint64_t seed) {
  constexpr uint64_t kFactor = 0x9e3779b97f4a7c15;
  uint64_t sums[4];
  for (uint64_t& sum : sums) sum = seed = Mix64(seed + kFactor);
  const auto add = [](uint64_t sum, uint64_t word) {
    sum = (sum ^ word) * kFactor;
    return sum ^ sum >> 32;
  };
  const auto word_at = [&](int64_t at) {
    uint64_t word = 0;
    std::memcpy(&word, data + at, std::min<int64_t>(8, bytes - at));
    return word;
  };
  int64_t at = 0;
  for (; at + 32 <= bytes; at += 32) {
    for (int i = 0; i < 4; ++i) sums[i] = add(sums[i], word_at(at + 8 * i));
  }
  for (int i = 0; at < bytes; at += 8, ++i) sums[i] = add(sums[i], word_at(at));
  return static_cast<uint32_t>(Mix64(add(add(add(sums[0], sums[1]), sums[2]), sums[3])));
}

// Requests whose buffers belong to a scope, which is not left before they are done.
class ScopedRequests {
 public:
  explicit ScopedRequests(BlockIo* io) : io_(io) {}
  ~ScopedRequests() { Wait(); }

  void Read(int64_t offset, int64_t bytes, char* buffer) {
    BlockRequest request;
    request.offset = offset;
    request.bytes = bytes;
    request.buffer = buffer;
    request.done = [this](int error) { Finish(error); };
    Add(1);
    try {
      io_->Submit(std::move(request), /*urgent=*/true);
    } catch (...) {
      Add(-1);
      throw;
    }
  }

  // Returns 0, or the error of one of them.
  int Wait() {
    std::unique_lock<std::mutex> lock(mu_);
    done_.wait(lock, [this] { return left_ == 0; });
    return error_;
  }

 private:
  void Add(int count) {
    std::lock_guard<std::mutex> lock(mu_);
    left_ += count;
  }
  void Finish(int error) {
    std::lock_guard<std::mutex> lock(mu_);
    if (error != 0) error_ = error;
    if (--left_ == 0) done_.notify_all();
  }

  BlockIo* const io_;
  std::mutex mu_;
  std::condition_variable done_;
  int left_ = 0, error_ = 0;
};

}  // namespace

std::string DescribeRowError(int error) {
  if (error == kWrongRecord) return "a record is not the one that was written";
  return DescribeError(error);
}

Status RowStore::Error(const char* what, int error) const {
  return FileStatus(path(), " cannot be ", what, ": ", DescribeRowError(error));
}

Status RowStore::SizesOf(const RowStoreOptions& options, Sizes* sizes) {
  if (options.num_rows < 1 || options.num_rows >= kNowhere) {
    return Invalid("num_rows must be in [1, 2^32 - 2], got ", options.num_rows);
  }
  if (options.row_bytes < 1 || options.row_bytes > (int64_t{1} << 30)) {
    return Invalid("row_bytes must be in [1, 2^30], got ", options.row_bytes);
  }
  const int64_t record_bytes = options.row_bytes + static_cast<int64_t>(sizeof(Tag));
  int64_t bytes = options.segment_bytes;
  if (bytes == 0) {
    bytes = std::min(options.num_rows / kTargetSegments * record_bytes, kMaxSegmentBytes);
  }
  bytes = RoundUp(std::max(bytes, record_bytes), kPage);
  sizes->segment_bytes = bytes;
  sizes->rows_per_segment = bytes / record_bytes;
  const int64_t filled = (options.num_rows + sizes->rows_per_segment - 1) / sizes->rows_per_segment;
  sizes->num_segments = filled + std::max(kMinSpareSegments, filled / kSpare);
  if (sizes->num_segments * sizes->rows_per_segment >= kNowhere) {
    return Invalid("num_rows must be less than 2^32 with the spare room of the file, got ",
                   options.num_rows);
  }
  return Status();
}

Status RowStore::Create(const std::string& path, const RowStoreOptions& options,
                        std::unique_ptr<RowStore>* store) {
  std::unique_ptr<RowStore> made(new RowStore(options));
  RowStore* const s = made.get();
  TWML_RETURN_IF_ERROR(SizesOf(options, &s->sizes_));
  s->record_bytes_ = options.row_bytes + static_cast<int64_t>(sizeof(Tag));
  const std::string content =
      std::to_string(options.num_rows) + " rows of " + std::to_string(options.row_bytes) + " bytes";
  TWML_RETURN_IF_ERROR(RowFile::Create(path, s->SegmentOffset(s->sizes_.num_segments),
                                       options.direct, content, &s->file_));
  s->places_.assign(options.num_rows, kNowhere);
  s->segments_.resize(s->sizes_.num_segments);
  // Threads that cannot report an error add to these lists; the memory is there.
  s->free_.reserve(s->sizes_.num_segments);
  s->full_.assign(s->sizes_.rows_per_segment + 1, kNowhere);
  s->free_buffers_.reserve(kNumBuffers);
  for (int64_t i = s->sizes_.num_segments - 1; i >= 0; --i) s->free_.push_back(i);
  for (int i = 0; i < kNumBuffers; ++i) {
    s->buffers_.emplace_back(s->sizes_.segment_bytes);
    s->free_buffers_.push_back(i);
  }
  s->clean_buffer_ = AlignedBuffer(kCleanedAtOnce * s->sizes_.segment_bytes);
  s->io_ =
      std::make_unique<BlockIo>(s->file_->fd(), options.depth, options.use_io_uring, options.fault);
  const int64_t alignment = s->file_->alignment();
  s->read_bytes_ = RoundUp(s->record_bytes_, alignment) + (s->direct() ? alignment : 0);
  s->reads_.resize(s->io_->depth());
  s->read_buffers_ = AlignedBuffer(s->io_->depth() * s->read_bytes_);
  for (int i = s->io_->depth() - 1; i >= 0; --i) s->free_reads_.push_back(i);
  s->cleaner_ = std::thread([s] { s->Clean(); });
  *store = std::move(made);
  return Status();
}

RowStore::~RowStore() {
  {
    std::unique_lock<std::mutex> lock(mu_);
    ends_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return running_ == 0 && waiting_reads_.empty(); });
  }
  if (cleaner_.joinable()) cleaner_.join();
  io_.reset();
}

char* RowStore::RecordInMemory(uint32_t place) const {
  const Segment& segment = segments_[place / sizes_.rows_per_segment];
  if (segment.buffer < 0) return nullptr;
  return buffers_[segment.buffer].data() + place % sizes_.rows_per_segment * record_bytes_;
}

RowStore::Tag RowStore::TagOf(const char* record, int64_t row, uint32_t version) const {
  const auto number = static_cast<uint32_t>(row);
  return {number, Checksum(record, options_.row_bytes, uint64_t{version} << 32 | number)};
}

int RowStore::CheckRecord(const char* record, int64_t row, uint32_t version) const {
  const Tag expected = TagOf(record, row, version);
  return std::memcmp(&expected, record + options_.row_bytes, sizeof(Tag)) == 0 ? 0 : kWrongRecord;
}

bool RowStore::CanOpen(int stream) const {
  const auto keep = stream == kMoved ? 0 : kMinFree;
  return !free_buffers_.empty() && static_cast<int64_t>(free_.size()) > keep;
}

Status RowStore::PlaceFor(int stream, std::unique_lock<std::mutex>* lock, uint32_t* place) {
  for (;;) {
    if (open_[stream] >= 0) {
      if (used_[stream] < sizes_.rows_per_segment) break;
      Seal(open_[stream]);
      open_[stream] = -1;
    }
    changed_.notify_all();  // the cleaner may be needed
    // A segment with unfinished reads is not written.
    const auto usable = [&] {
      return std::find_if(free_.rbegin(), free_.rend(),
                          [&](int64_t s) { return segments_[s].readers == 0; });
    };
    changed_.wait(*lock, [&] {
      return ends_ || write_error_ != 0 || (stream != kMoved && clean_error_ != 0) ||
             open_[stream] >= 0 || (CanOpen(stream) && usable() != free_.rend());
    });
    if (open_[stream] >= 0) continue;  // another thread has opened one meanwhile
    if (!CanOpen(stream) || usable() == free_.rend()) {
      if (write_error_ != 0) return Error("written", write_error_);
      if (clean_error_ != 0) return Error("read", clean_error_);
      return FileStatus(path(), " is being closed");
    }
    const auto chosen = std::next(usable()).base();
    const int64_t segment = *chosen;
    free_.erase(chosen);
    segments_[segment] = {0, 0, segments_[segment].version + 1,
                          static_cast<int16_t>(free_buffers_.back()), State::kOpen};
    free_buffers_.pop_back();
    open_[stream] = segment;
    used_[stream] = 0;
  }
  *place = static_cast<uint32_t>(open_[stream] * sizes_.rows_per_segment + used_[stream]++);
  return Status();
}

// Begins to write a segment. If this throws, nothing has changed.
void RowStore::Seal(int64_t number) {
  Segment& segment = segments_[number];
  BlockRequest request;
  request.write = true;
  request.offset = SegmentOffset(number);
  request.bytes = sizes_.segment_bytes;
  request.buffer = buffers_[segment.buffer].data();
  request.done = [this, number](int error) {
    std::lock_guard<std::mutex> lock(mu_);
    Segment& written = segments_[number];
    if (error != 0) {
      written.state = State::kFailed;  // the content stays in memory
      write_error_ = error;
    } else {
      free_buffers_.push_back(written.buffer);
      written.buffer = -1;
      EnterFull(number);
    }
    --running_;
    changed_.notify_all();
  };
  io_->Submit(std::move(request), /*urgent=*/false);
  segment.state = State::kWriting;
  ++running_;
  statistics_.bytes_written += sizes_.segment_bytes;
}

void RowStore::EnterFull(int64_t number) {
  Segment& segment = segments_[number];
  if (segment.live == 0) {
    segment.state = State::kFree;
    free_.push_back(number);
    changed_.notify_all();
    return;
  }
  segment.state = State::kFull;
  uint32_t& first = full_[segment.live];
  segment.previous = kNowhere;
  segment.next = first;
  if (first != kNowhere) segments_[first].previous = static_cast<uint32_t>(number);
  first = static_cast<uint32_t>(number);
  fewest_ = std::min<int64_t>(fewest_, segment.live);
}

void RowStore::LeaveFull(int64_t number, State state) {
  Segment& segment = segments_[number];
  const bool is_first = segment.previous == kNowhere;
  (is_first ? full_[segment.live] : segments_[segment.previous].next) = segment.next;
  if (segment.next != kNowhere) segments_[segment.next].previous = segment.previous;
  segment.state = state;
}

Status RowStore::Append(Span<const int64_t> rows, const std::function<void(int64_t, char*)>& write,
                        int64_t* stored) {
  *stored = 0;
  std::unique_lock<std::mutex> lock(mu_);
  for (int64_t i = 0; i < rows.size(); ++i) {
    uint32_t place = 0;
    TWML_RETURN_IF_ERROR(PlaceFor(0, &lock, &place));
    Segment& segment = segments_[place / sizes_.rows_per_segment];
    char* const record = RecordInMemory(place);
    write(i, record);
    const Tag tag = TagOf(record, rows[i], segment.version);
    std::memcpy(record + options_.row_bytes, &tag, sizeof(tag));
    Forget(rows[i]);
    places_[rows[i]] = place;
    ++segment.live;
    ++statistics_.rows_written;
    ++*stored;
  }
  return Status();
}

bool RowStore::Has(int64_t row) const {
  std::lock_guard<std::mutex> lock(mu_);
  return places_[row] != kNowhere;
}

void RowStore::Forget(Span<const int64_t> rows) {
  std::lock_guard<std::mutex> lock(mu_);
  for (const int64_t row : rows) Forget(row);
}

void RowStore::Forget(int64_t row) {
  const uint32_t place = places_[row];
  if (place == kNowhere) return;
  places_[row] = kNowhere;
  const int64_t number = place / sizes_.rows_per_segment;
  Segment& segment = segments_[number];
  const bool full = segment.state == State::kFull;
  if (full) LeaveFull(number, State::kFull);
  --segment.live;
  if (full) EnterFull(number);
}

void RowStore::Read(int64_t row, bool urgent, Receive receive) {
  std::lock_guard<std::mutex> lock(mu_);
  if (free_reads_.empty()) {
    WaitingRead read = {row, std::move(receive)};
    if (urgent) {
      waiting_reads_.push_front(std::move(read));
    } else {
      waiting_reads_.push_back(std::move(read));
    }
    return;
  }
  StartRead(row, std::move(receive), urgent);
}

void RowStore::StartRead(int64_t row, Receive receive, bool urgent) {
  const uint32_t place = places_[row];
  if (place == kNowhere) return receive(nullptr, ENOENT);
  if (const char* const record = RecordInMemory(place)) return receive(record, 0);
  const int64_t segment = place / sizes_.rows_per_segment;
  const int64_t alignment = file_->alignment(), at = RecordOffset(place);
  const int number = free_reads_.back();
  BlockRequest request;
  request.offset = at / alignment * alignment;
  request.bytes = RoundUp(at + record_bytes_, alignment) - request.offset;
  request.buffer = read_buffers_.data() + number * read_bytes_;
  const int64_t bytes = request.bytes;
  RunningRead& read = reads_[number];
  read = {row, segment, segments_[segment].version, at - request.offset, std::move(receive)};
  request.done = [this, number](int error) { FinishRead(number, error); };
  try {
    io_->Submit(std::move(request), urgent);
  } catch (const std::bad_alloc&) {
    return std::exchange(read.receive, nullptr)(nullptr, ENOMEM);
  }
  free_reads_.pop_back();
  ++segments_[segment].readers;
  ++running_;
  ++statistics_.rows_read;
  statistics_.bytes_read += bytes;
}

void RowStore::FinishRead(int number, int error) {
  RunningRead& read = reads_[number];
  const char* const record = read_buffers_.data() + number * read_bytes_ + read.skipped;
  if (error == 0) error = CheckRecord(record, read.row, read.version);
  std::exchange(read.receive, nullptr)(error == 0 ? record : nullptr, error);
  std::lock_guard<std::mutex> lock(mu_);
  if (--segments_[read.segment].readers == 0) changed_.notify_all();
  free_reads_.push_back(number);
  while (!free_reads_.empty() && !waiting_reads_.empty()) {
    WaitingRead next = std::move(waiting_reads_.front());
    waiting_reads_.pop_front();
    StartRead(next.row, std::move(next.receive), /*urgent=*/false);
  }
  if (--running_ == 0) changed_.notify_all();
}

Status RowStore::ReadRange(int64_t begin, int64_t count,
                           const std::function<void(int64_t, const char*)>& receive) {
  struct Wanted {
    int64_t at, row;
    uint32_t version;
  };
  std::vector<Wanted> wanted;
  wanted.reserve(count);
  // Whatever happens, the segments are not kept from being written any longer.
  const auto release = [this](std::vector<Wanted>* read) {
    std::lock_guard<std::mutex> guard(mu_);
    for (const Wanted& each : *read) {
      --segments_[(each.at - RowFile::kHeaderBytes) / sizes_.segment_bytes].readers;
    }
    changed_.notify_all();
  };
  const std::unique_ptr<std::vector<Wanted>, decltype(release)> pinned(&wanted, release);
  std::unique_lock<std::mutex> lock(mu_);
  for (int64_t row = begin; row < begin + count; ++row) {
    const uint32_t place = places_[row];
    if (place == kNowhere) continue;
    if (const char* const record = RecordInMemory(place)) {
      receive(row, record);
      continue;
    }
    const int64_t number = place / sizes_.rows_per_segment;
    ++segments_[number].readers;  // so that it is not overwritten
    wanted.push_back({RecordOffset(place), row, segments_[number].version});
  }
  lock.unlock();
  std::sort(wanted.begin(), wanted.end(),
            [](const Wanted& a, const Wanted& b) { return a.at < b.at; });
  // Several runs of neighboring records are read at the same time.
  const int64_t alignment = file_->alignment();
  struct Run {
    size_t first, last;
    int64_t offset, bytes;
  };
  std::vector<Run> runs;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const int64_t end = RoundUp(wanted[i].at + record_bytes_, alignment);
    if (!runs.empty() && wanted[i].at - (runs.back().offset + runs.back().bytes) <= kMaxGap &&
        end - runs.back().offset <= kMaxRun) {
      runs.back().last = i + 1;
      runs.back().bytes = std::max(runs.back().bytes, end - runs.back().offset);
    } else {
      const int64_t offset = wanted[i].at / alignment * alignment;
      runs.push_back({i, i + 1, offset, end - offset});
    }
  }
  constexpr int64_t kMaxBytes = 8 * kMaxRun;  // in memory at the same time
  int error = 0;
  for (size_t next = 0; next < runs.size() && error == 0;) {
    size_t end = next;
    int64_t bytes = 0;
    while (end < runs.size() && end - next < 256 &&
           (end == next || bytes + runs[end].bytes <= kMaxBytes)) {
      bytes += RoundUp(runs[end++].bytes, kPage);
    }
    const AlignedBuffer buffer(bytes);
    ScopedRequests requests(io_.get());
    int64_t at = 0;
    for (size_t i = next; i < end; ++i) {
      requests.Read(runs[i].offset, runs[i].bytes, buffer.data() + at);
      at += RoundUp(runs[i].bytes, kPage);
    }
    error = requests.Wait();
    at = 0;
    for (size_t i = next; i < end && error == 0; ++i) {
      for (size_t k = runs[i].first; k < runs[i].last && error == 0; ++k) {
        const char* const record = buffer.data() + at + wanted[k].at - runs[i].offset;
        error = CheckRecord(record, wanted[k].row, wanted[k].version);
        if (error == 0) receive(wanted[k].row, record);
      }
      at += RoundUp(runs[i].bytes, kPage);
    }
    next = end;
  }
  return error == 0 ? Status() : Error("read", error);
}

Status RowStore::RetryWrites() {
  std::unique_lock<std::mutex> lock(mu_);
  if (write_error_ == 0 && clean_error_ == 0) return Status();
  if (write_error_ != 0) {
    write_error_ = 0;
    try {
      for (int64_t i = 0; i < sizes_.num_segments; ++i) {
        if (segments_[i].state == State::kFailed) Seal(i);
      }
    } catch (const std::bad_alloc&) {
      write_error_ = ENOMEM;
    }
    changed_.wait(lock, [&] {
      return std::none_of(segments_.begin(), segments_.end(),
                          [](const Segment& s) { return s.state == State::kWriting; });
    });
    if (write_error_ != 0) return Error("written", write_error_);
  }
  clean_error_ = 0;
  changed_.notify_all();
  return Status();
}

Status RowStore::Replace(RowStore* other) { return file_->Replace(other->file_.get()); }

RowStore::Statistics RowStore::statistics() const {
  std::lock_guard<std::mutex> lock(mu_);
  return statistics_;
}

// The full segments with the fewest valid records, which leave their lists. Those in which all are
// valid are not cleaned. The work does not depend on the number of segments: `fewest_` goes back
// only as far as records have become invalid.
RowStore::Cleaned RowStore::TakeSegmentsToClean() {
  Cleaned found;
  while (found.count < kCleanedAtOnce && fewest_ < sizes_.rows_per_segment) {
    ++statistics_.clean_steps;
    if (const uint32_t number = full_[fewest_]; number != kNowhere) {
      LeaveFull(number, State::kCleaned);
      found.segments[found.count++] = number;
    } else {
      ++fewest_;
    }
  }
  return found;
}

void RowStore::Clean() {
  const int64_t wanted = kMinFree + std::max<int64_t>(4, sizes_.num_segments / 32);
  std::unique_lock<std::mutex> lock(mu_);
  for (;;) {
    Cleaned cleaned;
    changed_.wait(lock, [&] {
      if (ends_) return true;
      if (clean_error_ != 0 || write_error_ != 0) return false;
      if (static_cast<int64_t>(free_.size()) >= wanted) return false;
      cleaned = TakeSegmentsToClean();
      return cleaned.count > 0;
    });
    if (ends_) return;
    ++running_;
    statistics_.bytes_read += cleaned.count * sizes_.segment_bytes;
    lock.unlock();
    const int error = ReadSegments(cleaned);
    lock.lock();
    if (error != 0) clean_error_ = error;
    for (int i = 0; i < cleaned.count; ++i) {
      const int64_t number = cleaned.segments[i];
      const char* const content = clean_buffer_.data() + i * sizes_.segment_bytes;
      if (clean_error_ == 0) clean_error_ = MoveRecords(number, content, &lock);
      EnterFull(number);
    }
    --running_;
    changed_.notify_all();
  }
}

// Reads segments into the buffer. Returns 0 or an error.
int RowStore::ReadSegments(const Cleaned& cleaned) {
  try {
    ScopedRequests requests(io_.get());
    for (int i = 0; i < cleaned.count; ++i) {
      requests.Read(SegmentOffset(cleaned.segments[i]), sizes_.segment_bytes,
                    clean_buffer_.data() + i * sizes_.segment_bytes);
    }
    return requests.Wait();
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  }
}

// Moves the valid records of a segment to the stream of moved records. Returns 0 or an error.
int RowStore::MoveRecords(int64_t number, const char* content,
                          std::unique_lock<std::mutex>* lock) try {
  for (int64_t i = 0; i < sizes_.rows_per_segment; ++i) {
    const auto place = static_cast<uint32_t>(number * sizes_.rows_per_segment + i);
    const char* const record = content + i * record_bytes_;
    Tag tag;
    std::memcpy(&tag, record + options_.row_bytes, sizeof(tag));
    const int64_t row = tag.row;
    if (row >= options_.num_rows || places_[row] != place) continue;
    if (CheckRecord(record, row, segments_[number].version) != 0) continue;
    uint32_t to = 0;
    if (!PlaceFor(kMoved, lock, &to).ok()) return 0;
    if (places_[row] != place) continue;  // PlaceFor has waited; the place stays unused
    Segment& segment = segments_[to / sizes_.rows_per_segment];
    char* const moved = RecordInMemory(to);
    std::memcpy(moved, record, options_.row_bytes);
    tag = TagOf(moved, row, segment.version);
    std::memcpy(moved + options_.row_bytes, &tag, sizeof(tag));
    places_[row] = to;
    ++segment.live;
    --segments_[number].live;
  }
  return segments_[number].live == 0 ? 0 : kWrongRecord;
} catch (const std::bad_alloc&) {
  return ENOMEM;
}

}  // namespace twml
