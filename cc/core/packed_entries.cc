#include "cc/core/packed_entries.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "cc/core/group_by_id.h"
#include "cc/core/number_ids.h"
#include "cc/core/scratch.h"

namespace twml {
namespace {

constexpr uint32_t kMagic = 0x31707774;  // "twp1"
constexpr int kMaxBits = 63;

struct Header {
  uint32_t magic;
  uint8_t id_bits;    // of an id, or of a gap between distinct ids
  uint8_t code_bits;  // 0: the ids are not deduplicated
  uint8_t length_bits;
  uint8_t binary;
  int64_t entries;
  int64_t rows;
  int64_t distinct;
};
static_assert(sizeof(Header) == 32);

int BitsOf(uint64_t largest) {
  int bits = 1;
  while (bits < 64 && (largest >> bits) != 0) ++bits;
  return bits;
}

// One word more than needed, because reading an item may read two words.
int64_t BytesOfBits(int64_t count, int bits) { return (count * bits + 63) / 64 * 8 + 8; }

struct Layout {
  int64_t lengths, ids, codes, values, end;
};

Layout LayoutOf(const Header& h) {
  const int64_t ids = h.code_bits != 0 ? h.distinct : h.entries;
  Layout at;
  at.lengths = sizeof(Header);
  at.ids = at.lengths + BytesOfBits(h.rows, h.length_bits);
  at.codes = at.ids + BytesOfBits(ids, h.id_bits);
  at.values = at.codes + (h.code_bits != 0 ? BytesOfBits(h.entries, h.code_bits) : 0);
  at.end = at.values + (h.binary != 0 ? 0 : h.entries * static_cast<int64_t>(sizeof(float)));
  return at;
}

// Writes item(i) for i < count. Each item must be less than 2^bits.
template <class Item>
void WriteBits(int64_t count, int bits, Item item, uint8_t* out) {
  uint64_t word = 0;
  int used = 0;
  const auto flush = [&] {
    std::memcpy(out, &word, sizeof(word));
    out += sizeof(word);
  };
  const auto add = [&](uint64_t value, int width) {  // less than 64 bits
    word |= value << used;
    used += width;
    if (used >= 64) {
      flush();
      used -= 64;
      word = value >> (width - used);
    }
  };
  int64_t i = 0;
  if (4 * bits < 64) {  // the processor joins four items at the same time
    for (; i + 4 <= count; i += 4) {
      const uint64_t low = item(i) | item(i + 1) << bits;
      const uint64_t high = item(i + 2) | item(i + 3) << bits;
      add(low | high << 2 * bits, 4 * bits);
    }
  } else if (2 * bits < 64) {
    for (; i + 2 <= count; i += 2) add(item(i) | item(i + 1) << bits, 2 * bits);
  }
  for (; i < count; ++i) add(item(i), bits);
  if (used > 0) flush();
  word = 0;
  flush();
}

// Calls visit(i, item) for each item i < count.
template <class Visit>
void ReadBits(const uint8_t* from, int64_t count, int bits, Visit visit) {
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  int64_t i = 0, at = 0;
  if (bits > 57) {
    for (; i < count; ++i, at += bits) {
      uint64_t words[2];
      std::memcpy(words, from + at / 64 * 8, sizeof(words));
      const int shift = static_cast<int>(at % 64);
      visit(i, (words[0] >> shift | words[1] << 1 << (63 - shift)) & mask);
    }
    return;
  }
  const auto word_at = [&](int64_t bit) {  // has the 57 bits that begin there
    uint64_t word;
    std::memcpy(&word, from + bit / 8, sizeof(word));
    return word >> (bit % 8);
  };
  if (4 * bits <= 57) {
    for (; i + 4 <= count; i += 4, at += 4 * bits) {
      const uint64_t word = word_at(at);
      visit(i, word & mask);
      visit(i + 1, word >> bits & mask);
      visit(i + 2, word >> 2 * bits & mask);
      visit(i + 3, word >> 3 * bits & mask);
    }
  } else if (2 * bits <= 57) {
    for (; i + 2 <= count; i += 2, at += 2 * bits) {
      const uint64_t word = word_at(at);
      visit(i, word & mask);
      visit(i + 1, word >> bits & mask);
    }
  }
  for (; i < count; ++i, at += bits) visit(i, word_at(at) & mask);
}

// Serializes the entries of all parts.
template <class Id>
class Packer {
 public:
  Packer(const Csr<Id>& batch, int64_t input_dim, int64_t parts)
      : rows_(batch.num_rows()), parts_(parts), binary_(batch.binary), begin_(parts + 1, 0) {
    largest_id_ = std::max<int64_t>(input_dim - 1, 0) / parts;
    id_bits_ = BitsOf(static_cast<uint64_t>(largest_id_));
    if (parts == 1) {
      ids_ = batch.ids.data();
      values_ = batch.values.data();
      begin_[1] = batch.num_entries();
      splits_ = batch.row_splits.data();
    } else if ((parts & (parts - 1)) == 0) {
      const int shift = BitsOf(static_cast<uint64_t>(parts)) - 1;
      Partition(
          batch, [=](Id id) { return id & static_cast<Id>(parts - 1); },
          [=](Id id) { return id >> shift; });
    } else if (input_dim <= int64_t{1} << 32) {  // half the cost of 64-bit divisions
      const auto by = static_cast<uint32_t>(parts);
      Partition(
          batch, [=](Id id) { return static_cast<uint32_t>(id) % by; },
          [=](Id id) { return static_cast<uint32_t>(id) / by; });
    } else {
      const auto by = static_cast<uint64_t>(parts);
      Partition(
          batch, [=](Id id) { return static_cast<uint64_t>(id) % by; },
          [=](Id id) { return static_cast<uint64_t>(id) / by; });
    }
  }

  // Plans the message of one part, which Write then writes, and returns its size in bytes.
  int64_t Plan(int64_t p, bool deduplicate) {
    Part& part = plans_[p];
    Header& h = part.header;
    h = {kMagic,  static_cast<uint8_t>(id_bits_), 0,     0,
         binary_, begin_[p + 1] - begin_[p],      rows_, 0};
    int64_t longest = 0;
    for (int64_t b = 0; b < rows_; ++b) longest = std::max(longest, Length(p, b));
    h.length_bits = static_cast<uint8_t>(BitsOf(static_cast<uint64_t>(longest)));
    if (deduplicate) FindDistinct(p);
    return LayoutOf(h).end;
  }

  void Write(int64_t p, uint8_t* out) const {
    const Part& part = plans_[p];
    const Header& h = part.header;
    const Layout at = LayoutOf(h);
    const Id* const ids = ids_ + begin_[p];
    const auto plain = [&](int64_t k) { return static_cast<uint64_t>(ids[k]); };
    std::memcpy(out, &h, sizeof(h));
    WriteBits(
        rows_, h.length_bits, [&](int64_t b) { return static_cast<uint64_t>(Length(p, b)); },
        out + at.lengths);
    if (h.code_bits == 0) {
      WriteBits(h.entries, h.id_bits, plain, out + at.ids);
    } else {
      const NumberedIds<Id>& numbered = part.numbered;
      const Id* const distinct = numbered.distinct.data();
      const auto gap = [=](int64_t u) { return GapBefore(distinct, u); };
      WriteBits(h.distinct, h.id_bits, gap, out + at.ids);
      const uint32_t* const codes = numbered.codes.data();
      const auto code = [=](int64_t k) { return uint64_t{codes[k]}; };
      WriteBits(h.entries, h.code_bits, code, out + at.codes);
    }
    if (!binary_ && h.entries > 0) {
      std::memcpy(out + at.values, values_ + begin_[p], h.entries * sizeof(float));
    }
  }

 private:
  struct Part {
    Header header;
    NumberedIds<Id> numbered;
  };

  // The number of entries in row b of part p. Row b begins at splits_[p * (rows + 1) + b], counted
  // from the begin of the part.
  int64_t Length(int64_t p, int64_t b) const {
    const int64_t* const splits = splits_ + p * (rows_ + 1);
    return splits[b + 1] - splits[b];
  }

  // Where the next entry of each of many parts goes. Consecutive entries of one part wait for the
  // counter in memory.
  struct Counters {
    int64_t* next;
    int64_t Take(int64_t part) { return next[part]++; }
    int64_t Next(int64_t part) const { return next[part]; }
  };
  // The same for two parts, in registers.
  struct TwoCounters {
    int64_t first, second;
    int64_t Take(int64_t part) {
      const int64_t at = Next(part);
      second += part;
      first += 1 - part;
      return at;
    }
    int64_t Next(int64_t part) const { return first + (-part & (second - first)); }  // no branch
  };

  template <class PartOf, class LocalOf>
  void Partition(const Csr<Id>& batch, PartOf part_of, LocalOf local_of) {
    const auto part = [=](Id id) __attribute__((always_inline)) {
      return static_cast<int64_t>(part_of(id));
    };
    if (parts_ == 2) {
      int64_t of_second = 0;
      for (const Id id : batch.ids) of_second += part(id);
      begin_ = {0, batch.num_entries() - of_second, batch.num_entries()};
      return Distribute(batch, part, local_of, TwoCounters{begin_[0], begin_[1]});
    }
    for (const Id id : batch.ids) ++begin_[part(id) + 1];
    for (int64_t p = 0; p < parts_; ++p) begin_[p + 1] += begin_[p];
    std::vector<int64_t> next(begin_.begin(), begin_.end() - 1);
    Distribute(batch, part, local_of, Counters{next.data()});
  }

  // Writes the entries of all parts. `next` are the positions where the parts begin.
  template <class PartOf, class LocalOf, class Positions>
  void Distribute(const Csr<Id>& batch, PartOf part_of, LocalOf local_of, Positions next) {
    partitioned_ids_ = Scratch<Id>(batch.num_entries());
    partitioned_values_ = Scratch<float>(binary_ ? 0 : batch.num_entries());
    partitioned_splits_ = Scratch<int64_t>(parts_ * (rows_ + 1));
    // Copies, since a compiler has to assume that an id which is written changes what is read.
    const Id *from = batch.ids.data(), *const first = from;
    Id* const ids = partitioned_ids_.data();
    float* const values = partitioned_values_.data();
    int64_t* const splits = partitioned_splits_.data();
    for (int64_t b = 0;; ++b) {
      for (int64_t p = 0; p < parts_; ++p) splits[p * (rows_ + 1) + b] = next.Next(p) - begin_[p];
      if (b == rows_) break;
      const Id* const end = first + batch.row_splits[b + 1];
      for (; from < end; ++from) {
        const Id id = *from;
        const int64_t to = next.Take(part_of(id));
        ids[to] = static_cast<Id>(local_of(id));
        if (!binary_) values[to] = batch.values[from - first];
      }
    }
    ids_ = ids;
    values_ = values;
    splits_ = splits;
  }

  void FindDistinct(int64_t p) {
    Part& part = plans_[p];
    Header& h = part.header;
    const Id* const ids = ids_ + begin_[p];
    const int64_t n = h.entries, sample = std::min(n, kDistinctSample);
    if (n == 0 || n > std::numeric_limits<uint32_t>::max()) return;
    NumberedIds<Id>& numbered = part.numbered;
    if (!NumberIds(Span<const Id>(ids, n), largest_id_ + 1, sample, &numbered)) return;
    const int64_t distinct = numbered.num_distinct;
    uint64_t largest_gap = 0;
    const Id* const of_number = numbered.distinct.data();
    for (int64_t u = 0; u < distinct; ++u) {
      largest_gap = std::max(largest_gap, GapBefore(of_number, u));
    }
    const int gap_bits = BitsOf(largest_gap);
    const int code_bits = BitsOf(static_cast<uint64_t>(distinct - 1));
    if (distinct * gap_bits + n * code_bits >= n * h.id_bits) return;
    h.id_bits = static_cast<uint8_t>(gap_bits);
    h.code_bits = static_cast<uint8_t>(code_bits);
    h.distinct = distinct;
  }

  // How many numbers are between a distinct id and the one before, or below the first one.
  static uint64_t GapBefore(const Id* distinct, int64_t u) {
    const auto id = static_cast<uint64_t>(distinct[u]);
    return u == 0 ? id : id - static_cast<uint64_t>(distinct[u - 1]) - 1;
  }

  const int64_t rows_, parts_;
  const bool binary_;
  std::vector<int64_t> begin_;
  std::vector<Part> plans_ = std::vector<Part>(parts_);
  int64_t largest_id_ = 0;  // of a part
  int id_bits_ = 0;
  const Id* ids_ = nullptr;
  const float* values_ = nullptr;
  const int64_t* splits_ = nullptr;
  Scratch<Id> partitioned_ids_;
  Scratch<float> partitioned_values_;
  Scratch<int64_t> partitioned_splits_;
};

Status CheckHeader(const Header& h, int64_t size) {
  const auto valid = [](int bits) { return bits >= 1 && bits <= kMaxBits; };
  const int64_t max_items = 8 * size;  // every item takes at least one bit
  if (h.magic != kMagic || !valid(h.id_bits) || !valid(h.length_bits) || h.code_bits > 32 ||
      h.binary > 1 || h.entries < 0 || h.entries > max_items || h.rows < 0 || h.rows > max_items ||
      h.distinct < 0 || h.distinct > h.entries || (h.code_bits == 0) != (h.distinct == 0) ||
      LayoutOf(h).end != size) {
    return Invalid("packed must be a message of pack_entries, got ", size,
                   " bytes of another form");
  }
  return Status();
}

// Reads the header of a message whose ids fit into Id. All sections are then within the message.
template <class Id>
Status ReadHeader(Span<const uint8_t> packed, Header* h) {
  *h = {};
  if (packed.size() >= static_cast<int64_t>(sizeof(*h))) {
    std::memcpy(h, packed.data(), sizeof(*h));
  }
  TWML_RETURN_IF_ERROR(CheckHeader(*h, packed.size()));
  if (h->id_bits >= static_cast<int>(8 * sizeof(Id))) {
    return Invalid("packed has ids of ", int{h->id_bits}, " bits, which ", 8 * sizeof(Id),
                   "-bit integers cannot hold");
  }
  return Status();
}

void ReadRowSplits(const Header& h, const uint8_t* lengths, int64_t* row_splits) {
  row_splits[0] = 0;
  ReadBits(lengths, h.rows, h.length_bits, [&](int64_t b, uint64_t length) {
    row_splits[b + 1] = row_splits[b] + static_cast<int64_t>(length);
  });
}

// Calls visit(u, id) for the distinct ids, while they fit into Id. Returns whether all do.
template <class Id, class Visit>
bool ForDistinct(const Header& h, const uint8_t* gaps, Visit visit) {
  constexpr auto kLargest = static_cast<uint64_t>(std::numeric_limits<Id>::max());
  uint64_t next = 0;
  bool fit = true;
  ReadBits(gaps, h.distinct, h.id_bits, [&](int64_t u, uint64_t gap) {
    fit = fit && gap <= kLargest - next;
    if (!fit) return;
    visit(u, static_cast<Id>(next + gap));
    next += gap + 1;
    fit = next <= kLargest || u + 1 == h.distinct;
  });
  return fit;
}

Status WrongCounts() {
  return Invalid("packed must be a message of pack_entries, got one whose counts do not add up");
}

// Checks that the lengths of the rows add up, and that distinct ids fit into Id.
template <class Id>
Status CheckLengthsAndIds(const Header& h, const uint8_t* message) {
  const Layout at = LayoutOf(h);
  int64_t left = h.entries;
  bool too_long = false;
  ReadBits(message + at.lengths, h.rows, h.length_bits, [&](int64_t, uint64_t length) {
    too_long = too_long || length > static_cast<uint64_t>(left);
    if (!too_long) left -= static_cast<int64_t>(length);
  });
  if (too_long || left != 0) return WrongCounts();
  if (!ForDistinct<Id>(h, message + at.ids, [](int64_t, Id) {})) {
    return Invalid("packed has ids that ", 8 * sizeof(Id), "-bit integers cannot hold");
  }
  return Status();
}

// Calls visit(k, code) for the codes of the entries, of which there is at least one. A code that is
// too large is passed as the largest that is valid, and makes the result an error.
template <class Visit>
Status ForCodes(const Header& h, const uint8_t* from, Visit visit) {
  const auto last = static_cast<uint64_t>(h.distinct - 1);
  uint64_t largest = 0;
  ReadBits(from, h.entries, h.code_bits, [&](int64_t k, uint64_t code) {
    largest = std::max(largest, code);
    visit(k, static_cast<uint32_t>(std::min(code, last)));
  });
  return largest <= last ? Status() : WrongCounts();
}

template <class Id>
void ReadIds(const Header& h, const uint8_t* from, Id* ids) {
  const auto set = [&](int64_t i, auto id) { ids[i] = static_cast<Id>(id); };
  if (h.code_bits != 0) {
    ForDistinct<Id>(h, from, set);
  } else {
    ReadBits(from, h.entries, h.id_bits, set);
  }
}

}  // namespace

template <class Id>
Status PackEntries(const Csr<Id>& batch, int64_t input_dim, int64_t parts, bool deduplicate,
                   const ParallelFor& parallel_for, const AllocatePart& allocate) {
  if (parts < 1) return Invalid("parts must be at least 1, got ", parts);
  TWML_RETURN_IF_ERROR(CheckCsr(batch, input_dim, parallel_for));
  Packer<Id> packer(batch, input_dim, parts);
  std::vector<int64_t> bytes(parts);
  const int64_t cost = 2 * batch.num_entries() / parts + 1;
  parallel_for(parts, cost, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) bytes[p] = packer.Plan(p, deduplicate);
  });
  std::vector<uint8_t*> out(parts);
  for (int64_t p = 0; p < parts; ++p) {
    out[p] = allocate(p, bytes[p]);
    if (out[p] == nullptr) return Status();
  }
  parallel_for(parts, cost, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) packer.Write(p, out[p]);
  });
  return Status();
}

template <class Id>
Status UnpackEntries(Span<const uint8_t> packed, const AllocateUnpacked<Id>& allocate) {
  Header h;
  TWML_RETURN_IF_ERROR(ReadHeader<Id>(packed, &h));
  const Layout at = LayoutOf(h);
  const uint8_t* const from = packed.data();
  TWML_RETURN_IF_ERROR(CheckLengthsAndIds<Id>(h, from));
  const UnpackedEntries<Id> out = allocate(h.entries, h.rows, h.binary != 0);
  if (out.ids == nullptr) return Status();
  ReadRowSplits(h, from + at.lengths, out.row_splits);
  if (h.code_bits == 0) {
    ReadIds(h, from + at.ids, out.ids);
  } else {
    const Scratch<Id> distinct(h.distinct);
    ReadIds(h, from + at.ids, distinct.data());
    Id *const ids = out.ids, *const of_code = distinct.data();
    TWML_RETURN_IF_ERROR(
        ForCodes(h, from + at.codes, [=](int64_t k, uint32_t code) { ids[k] = of_code[code]; }));
  }
  if (h.binary == 0 && h.entries > 0) {
    std::memcpy(out.values, from + at.values, h.entries * sizeof(float));
  }
  return Status();
}

template <class Id>
Status GroupPackedEntries(Span<const uint8_t> packed, bool binary, int64_t input_dim,
                          const ParallelFor& parallel_for, GroupedBatch<Id>* grouped) {
  Header h;
  TWML_RETURN_IF_ERROR(ReadHeader<Id>(packed, &h));
  if ((h.binary != 0) != binary) {
    return Invalid("packed must be the message of a ",
                   binary ? "binary batch" : "batch with values", ", got another one");
  }
  const Layout at = LayoutOf(h);
  const uint8_t* const from = packed.data();
  TWML_RETURN_IF_ERROR(CheckLengthsAndIds<Id>(h, from));
  const Scratch<int64_t> row_splits(h.rows + 1);
  ReadRowSplits(h, from + at.lengths, row_splits.data());
  const Scratch<float> values(binary ? 0 : h.entries);  // the message need not be aligned
  if (!binary && h.entries > 0) {
    std::memcpy(values.data(), from + at.values, h.entries * sizeof(float));
  }
  const int64_t count = h.code_bits != 0 ? h.distinct : h.entries;
  const Scratch<Id> ids(count);
  ReadIds(h, from + at.ids, ids.data());
  Csr<Id> batch;
  batch.ids = Span<const Id>(ids.data(), count);
  batch.values = Span<const float>(values.data(), binary ? 0 : h.entries);
  batch.row_splits = Span<const int64_t>(row_splits.data(), h.rows + 1);
  batch.binary = binary;
  if (h.code_bits == 0) return GroupBatch<Id>(batch, input_dim, nullptr, parallel_for, grouped);
  const Scratch<uint32_t> codes(h.entries);
  uint32_t* const to = codes.data();
  TWML_RETURN_IF_ERROR(
      ForCodes(h, from + at.codes, [=](int64_t k, uint32_t code) { to[k] = code; }));
  return GroupCodedBatch(batch, Span<const uint32_t>(codes.data(), h.entries), input_dim,
                         parallel_for, grouped);
}

#define TWML_INSTANTIATE(Id)                                                                     \
  template Status PackEntries<Id>(const Csr<Id>&, int64_t, int64_t, bool, const ParallelFor&,    \
                                  const AllocatePart&);                                          \
  template Status UnpackEntries<Id>(Span<const uint8_t>, const AllocateUnpacked<Id>&);           \
  template Status GroupPackedEntries<Id>(Span<const uint8_t>, bool, int64_t, const ParallelFor&, \
                                         GroupedBatch<Id>*);
TWML_INSTANTIATE(int32_t)
TWML_INSTANTIATE(int64_t)
#undef TWML_INSTANTIATE

}  // namespace twml
