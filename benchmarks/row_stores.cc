// Measures stores of records: which one serves the rows of tables that are larger than memory.
//
//   row_stores probe FOLDER ROWS ROW_BYTES SECONDS DIRECT   random reads of a file of that size
//   row_stores STORE FOLDER ROWS ROW_BYTES SECONDS DIRECT   steps of random reads and updates
//
// STORE is "segments" (cc/core/row_store.h), "blocks" (records that are updated in place, in
// aligned blocks that hold several records) or "rocksdb" (if compiled with TWML_ROCKSDB). A step
// reads kBatch different random rows and then writes as many: the rows of the step before, as a
// cache does that is full of changed rows. Prints one line of JSON.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "cc/core/block_io.h"
#include "cc/core/row_store.h"
#ifdef TWML_ROCKSDB
#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>
#endif

namespace {

constexpr int kDepth = 64;
constexpr int64_t kBatch = 8192;
constexpr int64_t kPage = 4096;

struct Setting {
  std::string folder;
  int64_t rows, row_bytes;
  double seconds;
  bool direct;
};

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](timeval t) { return t.tv_sec + t.tv_usec * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Bytes that the process has caused to be read from and written to the device.
std::map<std::string, int64_t> DeviceBytes() {
  std::map<std::string, int64_t> found;
  if (FILE* const file = std::fopen("/proc/self/io", "r")) {
    char name[64];
    long long value;
    while (std::fscanf(file, "%63[^:]: %lld\n", name, &value) == 2) found[name] = value;
    std::fclose(file);
  }
  return found;
}

[[noreturn]] void Fail(const std::string& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
  std::exit(1);
}

void Check(const twml::Status& status) {
  if (!status.ok()) Fail(status.message());
}

class Store {
 public:
  virtual ~Store() = default;
  virtual void Read(const std::vector<int64_t>& rows, char* records) = 0;
  virtual void Write(const std::vector<int64_t>& rows, const char* records) = 0;
};

// Waits for a number of requests.
class Pending {
 public:
  void Add(int64_t n) { left_ += n; }
  void Done(int error) {
    if (error != 0) Fail(twml::DescribeError(error));
    std::lock_guard<std::mutex> lock(mu_);
    if (--left_ == 0) changed_.notify_all();
  }
  void Wait() {
    std::unique_lock<std::mutex> lock(mu_);
    changed_.wait(lock, [&] { return left_ == 0; });
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  std::atomic<int64_t> left_{0};
};

class SegmentStore : public Store {
 public:
  explicit SegmentStore(const Setting& setting) : row_bytes_(setting.row_bytes) {
    twml::RowStoreOptions options;
    options.num_rows = setting.rows;
    options.row_bytes = row_bytes_;
    options.direct = setting.direct;
    options.depth = kDepth;
    Check(twml::RowStore::Create(setting.folder + "/segments.rows", options, &store_));
  }
  void Read(const std::vector<int64_t>& rows, char* records) override {
    Pending pending;
    pending.Add(static_cast<int64_t>(rows.size()));
    for (size_t i = 0; i < rows.size(); ++i) {
      store_->Read(rows[i], false, [&, i](const char* record, int error) {
        if (error == 0) std::memcpy(records + i * row_bytes_, record, row_bytes_);
        pending.Done(error);
      });
    }
    pending.Wait();
  }
  void Write(const std::vector<int64_t>& rows, const char* records) override {
    int64_t stored;
    Check(store_->Append(
        rows, [&](int64_t i, char* to) { std::memcpy(to, records + i * row_bytes_, row_bytes_); },
        &stored));
  }

 private:
  const int64_t row_bytes_;
  std::unique_ptr<twml::RowStore> store_;
};

// Records in aligned blocks, each at its place. A block that holds other records as well is read
// before it is written.
class BlockStore : public Store {
 public:
  explicit BlockStore(const Setting& setting)
      : path_(setting.folder + "/blocks.rows"), row_bytes_(setting.row_bytes) {
    // As many records as fit into a block of 512 bytes, the unit of most devices.
    const int64_t unit = setting.direct ? 512 : 1;
    block_bytes_ = (row_bytes_ + unit - 1) / unit * unit;
    per_block_ = block_bytes_ / row_bytes_;
    const int flags = O_RDWR | O_CREAT | O_TRUNC | (setting.direct ? O_DIRECT : 0);
    fd_ = open(path_.c_str(), flags, 0600);
    if (fd_ < 0) Fail(path_ + " cannot be opened");
    io_ = std::make_unique<twml::BlockIo>(fd_, kDepth, true);
    const int64_t piece = kPage / std::min(kPage, block_bytes_) * block_bytes_ * 64;
    twml::AlignedBuffer zeros(piece);
    std::memset(zeros.data(), 1, piece);
    const int64_t size = (setting.rows + per_block_ - 1) / per_block_ * block_bytes_;
    for (int64_t at = 0; at < size; at += piece) {
      if (pwrite(fd_, zeros.data(), piece, at) != piece) Fail("the disk is full");
    }
    fsync(fd_);
  }
  ~BlockStore() override {
    io_.reset();
    close(fd_);
    unlink(path_.c_str());
  }
  void Read(const std::vector<int64_t>& rows, char* records) override {
    twml::AlignedBuffer buffer(static_cast<int64_t>(rows.size()) * Slot());
    ReadBlocks(rows, buffer.data());
    for (size_t i = 0; i < rows.size(); ++i) {
      std::memcpy(records + i * row_bytes_,
                  buffer.data() + i * Slot() + rows[i] % per_block_ * row_bytes_, row_bytes_);
    }
  }
  void Write(const std::vector<int64_t>& rows, const char* records) override {
    std::vector<int64_t> order(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) order[i] = static_cast<int64_t>(i);
    std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return rows[a] < rows[b]; });
    std::vector<int64_t> first;  // a row of each block
    for (const int64_t i : order) {
      if (first.empty() || first.back() / per_block_ != rows[i] / per_block_) {
        first.push_back(rows[i]);
      }
    }
    twml::AlignedBuffer buffer(static_cast<int64_t>(first.size()) * Slot());
    if (per_block_ > 1) ReadBlocks(first, buffer.data());
    int64_t block = -1;
    for (const int64_t i : order) {
      if (block < 0 || first[block] / per_block_ != rows[i] / per_block_) ++block;
      std::memcpy(buffer.data() + block * Slot() + rows[i] % per_block_ * row_bytes_,
                  records + i * row_bytes_, row_bytes_);
    }
    Run(first, buffer.data(), true);
  }

 private:
  int64_t Slot() const { return (block_bytes_ + 511) / 512 * 512; }
  void ReadBlocks(const std::vector<int64_t>& rows, char* buffer) { Run(rows, buffer, false); }
  void Run(const std::vector<int64_t>& rows, char* buffer, bool write) {
    Pending pending;
    pending.Add(static_cast<int64_t>(rows.size()));
    for (size_t i = 0; i < rows.size(); ++i) {
      twml::BlockRequest request;
      request.write = write;
      request.offset = rows[i] / per_block_ * block_bytes_;
      request.bytes = block_bytes_;
      request.buffer = buffer + i * Slot();
      request.done = [&](int error) { pending.Done(error); };
      io_->Submit(std::move(request), false);
    }
    pending.Wait();
  }

  const std::string path_;
  const int64_t row_bytes_;
  int64_t block_bytes_, per_block_;
  int fd_;
  std::unique_ptr<twml::BlockIo> io_;
};

#ifdef TWML_ROCKSDB
class RocksStore : public Store {
 public:
  explicit RocksStore(const Setting& setting)
      : path_(setting.folder + "/rocksdb"), row_bytes_(setting.row_bytes) {
    rocksdb::Options options;
    options.create_if_missing = true;
    options.compression = rocksdb::kNoCompression;
    options.use_direct_reads = setting.direct;
    options.use_direct_io_for_flush_and_compaction = setting.direct;
    options.write_buffer_size = 16 << 20;
    options.max_background_jobs = 2;
    options.level_compaction_dynamic_level_bytes = true;
    rocksdb::BlockBasedTableOptions table;
    table.block_size = 4096;
    table.cache_index_and_filter_blocks = false;
    table.block_cache = rocksdb::NewLRUCache(8 << 20);
    options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
    rocksdb::DestroyDB(path_, options);
    rocksdb::DB* db;
    Check(rocksdb::DB::Open(options, path_, &db));
    db_.reset(db);
  }
  ~RocksStore() override {
    db_.reset();
    rocksdb::DestroyDB(path_, rocksdb::Options());
  }
  void Read(const std::vector<int64_t>& rows, char* records) override {
    std::vector<std::string> keys;
    for (const int64_t row : rows) keys.push_back(Key(row));
    std::vector<rocksdb::Slice> slices(keys.begin(), keys.end());
    std::vector<rocksdb::PinnableSlice> values(rows.size());
    std::vector<rocksdb::Status> statuses(rows.size());
    rocksdb::ReadOptions options;
    options.async_io = true;
    options.fill_cache = false;
    options.verify_checksums = false;
    for (size_t at = 0; at < rows.size(); at += kDepth) {
      const size_t n = std::min<size_t>(kDepth, rows.size() - at);
      db_->MultiGet(options, db_->DefaultColumnFamily(), n, &slices[at], &values[at],
                    &statuses[at]);
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      Check(statuses[i]);
      std::memcpy(records + i * row_bytes_, values[i].data(), row_bytes_);
    }
  }
  void Write(const std::vector<int64_t>& rows, const char* records) override {
    rocksdb::WriteBatch batch;
    for (size_t i = 0; i < rows.size(); ++i) {
      batch.Put(Key(rows[i]), rocksdb::Slice(records + i * row_bytes_, row_bytes_));
    }
    rocksdb::WriteOptions options;
    options.disableWAL = true;
    Check(db_->Write(options, &batch));
  }

 private:
  static void Check(const rocksdb::Status& status) {
    if (!status.ok()) Fail(status.ToString());
  }
  static std::string Key(int64_t row) {
    std::string key(8, '\0');
    for (int i = 0; i < 8; ++i) key[i] = static_cast<char>(row >> (56 - 8 * i));
    return key;
  }

  const std::string path_;
  const int64_t row_bytes_;
  std::unique_ptr<rocksdb::DB> db_;
};
#endif

std::vector<int64_t> RandomRows(std::mt19937_64* random, int64_t rows) {
  std::vector<int64_t> found;
  for (int64_t i = 0; i < std::min(kBatch, rows); ++i) {
    found.push_back(static_cast<int64_t>((*random)() % static_cast<uint64_t>(rows)));
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  std::shuffle(found.begin(), found.end(), *random);
  return found;
}

// Reads blocks of the size of a record, without any store.
void Probe(const Setting& setting) {
  const std::string path = setting.folder + "/probe";
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | (setting.direct ? O_DIRECT : 0), 0600);
  if (fd < 0) Fail(path + " cannot be opened");
  const int64_t unit = (setting.row_bytes + 511) / 512 * 512, size = setting.rows * unit;
  constexpr int64_t kPiece = 1 << 20;
  twml::AlignedBuffer buffer(std::max(kPiece, kDepth * ((unit + kPage - 1) / kPage) * kPage));
  std::memset(buffer.data(), 1, kPiece);
  struct stat found;
  fstat(fd, &found);
  for (int64_t at = found.st_size; at < size; at += kPiece) {
    if (pwrite(fd, buffer.data(), kPiece, at) != kPiece) Fail("the disk is full");
  }
  fsync(fd);
  std::mt19937_64 random(1);
  int64_t reads = 0;
  const double start = Now();
  {
    twml::BlockIo io(fd, kDepth, true);
    std::mutex mu;
    std::condition_variable changed;
    int64_t running = 0;
    std::vector<int64_t> idle(kDepth);
    for (int i = 0; i < kDepth; ++i) idle[i] = i;
    std::unique_lock<std::mutex> lock(mu);
    while (Now() - start < setting.seconds) {
      changed.wait(lock, [&] { return !idle.empty(); });
      while (!idle.empty()) {
        const int64_t slot = idle.back();
        idle.pop_back();
        ++running;
        twml::BlockRequest request;
        request.offset =
            static_cast<int64_t>(random() % static_cast<uint64_t>(setting.rows)) * unit;
        request.bytes = unit;
        request.buffer = buffer.data() + slot * ((unit + kPage - 1) / kPage) * kPage;
        request.done = [&, slot](int error) {
          if (error != 0) Fail(twml::DescribeError(error));
          std::lock_guard<std::mutex> guard(mu);
          idle.push_back(slot);
          --running;
          ++reads;
          changed.notify_one();
        };
        io.Submit(std::move(request), false);
      }
    }
    changed.wait(lock, [&] { return running == 0; });
  }
  std::printf("{\"reads_per_second\": %.0f}\n", static_cast<double>(reads) / (Now() - start));
  close(fd);
}

void Measure(Store* store, const Setting& setting) {
  std::mt19937_64 random(1);
  std::vector<char> records(kBatch * setting.row_bytes, 7);
  for (int64_t begin = 0; begin < setting.rows; begin += kBatch) {
    std::vector<int64_t> rows;
    for (int64_t i = begin; i < std::min(begin + kBatch, setting.rows); ++i) rows.push_back(i);
    store->Write(rows, records.data());
  }
  // As many updates as rows before the measurement, so that the store has to clean up.
  for (int64_t done = 0; done < setting.rows;) {
    const auto rows = RandomRows(&random, setting.rows);
    store->Write(rows, records.data());
    done += static_cast<int64_t>(rows.size());
  }
  std::vector<int64_t> before = RandomRows(&random, setting.rows);
  const auto bytes = DeviceBytes();
  const double start = Now(), cpu = CpuSeconds();
  int64_t reads = 0;
  while (Now() - start < setting.seconds) {
    auto rows = RandomRows(&random, setting.rows);
    store->Read(rows, records.data());
    store->Write(before, records.data());
    reads += static_cast<int64_t>(rows.size());
    before = std::move(rows);
  }
  const double seconds = Now() - start;
  auto after = DeviceBytes();
  const auto moved = [&](const char* name) {
    return static_cast<double>(after[name] - bytes.at(name)) / static_cast<double>(reads) /
           static_cast<double>(setting.row_bytes);
  };
  std::printf(
      "{\"rows_per_second\": %.0f, \"cpu_seconds_per_million\": %.2f, \"read_amplification\": "
      "%.2f, \"write_amplification\": %.2f}\n",
      static_cast<double>(reads) / seconds, (CpuSeconds() - cpu) * 1e6 / static_cast<double>(reads),
      moved("read_bytes"), moved("write_bytes"));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) Fail("usage: row_stores STORE FOLDER ROWS ROW_BYTES SECONDS DIRECT");
  const std::string kind = argv[1];
  const Setting setting = {argv[2], std::atoll(argv[3]), std::atoll(argv[4]), std::atof(argv[5]),
                           std::atoi(argv[6]) != 0};
  std::unique_ptr<Store> store;
  if (kind == "probe") {
    Probe(setting);
    return 0;
  }
  if (kind == "segments") store = std::make_unique<SegmentStore>(setting);
  if (kind == "blocks") store = std::make_unique<BlockStore>(setting);
#ifdef TWML_ROCKSDB
  if (kind == "rocksdb") store = std::make_unique<RocksStore>(setting);
#endif
  if (store == nullptr) Fail("unknown store " + kind);
  Measure(store.get(), setting);
  return 0;
}
