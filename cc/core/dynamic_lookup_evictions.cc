#include "cc/core/dynamic_lookup_evictions.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <mutex>
#include <utility>

#include "cc/core/fork.h"
#include "cc/core/hash.h"

namespace twml {
namespace {

constexpr int64_t kLeast = 64;    // rows in a heap
constexpr int64_t kPart = 16;     // a heap has one of so many rows
constexpr int64_t kSamples = 32;  // rows that Fits compares
constexpr size_t kMaxOrders = 64;

constexpr std::greater<> kSmallestFirst{};

struct Kept {
  StateStamp stamp;
  std::unique_ptr<EvictionOrder> order;
};

struct Orders {
  std::mutex mu;
  std::vector<Kept> kept;  // the last one was used last
};

Orders& ProcessOrders() {
  static auto* const orders = new PerProcess<Orders>;
  return orders->Get();
}

}  // namespace

EvictionOrder::EvictionOrder(int64_t capacity) : in_heap_(static_cast<size_t>(capacity)) {
  heap_.reserve(static_cast<size_t>(capacity));  // no page of it is used before it is needed
}

void EvictionOrder::Push(const Victim& key) {
  heap_.push_back(key);
  std::push_heap(heap_.begin(), heap_.end(), kSmallestFirst);
  in_heap_[std::get<2>(key)] = true;
}

void EvictionOrder::Build(const RowUses& uses, int64_t number) {
  const int64_t capacity = uses.last_used.size();
  const auto size = static_cast<size_t>(std::max({kLeast, capacity / kPart, 2 * number}));
  heap_.clear();
  has_all_ = true;
  const auto cut = [&] {
    std::nth_element(heap_.begin(), heap_.begin() + size - 1, heap_.end());
    bound_ = heap_[size - 1];
    heap_.resize(size);
    has_all_ = false;
  };
  for (int64_t row = 1; row < capacity; ++row) {
    if (uses.last_used[row] == 0) continue;
    const Victim key = uses.KeyOf(row);
    if (!has_all_ && key > bound_) continue;
    if (heap_.size() == 2 * size) cut();
    heap_.push_back(key);
  }
  if (heap_.size() > size) cut();
  if (has_all_) {
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    bound_ = {kMost, kMost, kMost};
  }
  std::make_heap(heap_.begin(), heap_.end(), kSmallestFirst);
  std::fill(in_heap_.begin(), in_heap_.end(), false);
  for (const Victim& key : heap_) in_heap_[std::get<2>(key)] = true;
  built_ = true;
  work_ += capacity;
}

void EvictionOrder::Take(const RowUses& uses, int64_t newest, int64_t number,
                         std::vector<Victim>* victims) {
  if (!built_) Build(uses, number);
  victims->clear();
  size_t size = heap_.size();   // of the heap; behind it are rows that are kept for this time
  const auto drop_last = [&] {  // the row that has just left the heap
    std::swap(heap_[size], heap_.back());
    heap_.pop_back();
  };
  while (static_cast<int64_t>(victims->size()) < number) {
    if (size == 0) {
      if (has_all_) break;
      // The rows that were taken have not changed, so they are found again.
      const auto passed = static_cast<int64_t>(heap_.size() + victims->size());
      victims->clear();
      Build(uses, passed + number);
      size = heap_.size();
      continue;
    }
    std::pop_heap(heap_.begin(), heap_.begin() + size--, kSmallestFirst);
    ++work_;
    const Victim key = heap_[size];
    const int64_t row = std::get<2>(key);
    const Victim current = uses.KeyOf(row);
    if (current != key) {
      if (current <= bound_) {
        heap_[size] = current;
        std::push_heap(heap_.begin(), heap_.begin() + ++size, kSmallestFirst);
      } else {
        in_heap_[row] = false;
        drop_last();
      }
    } else if (uses.last_used[row] <= newest) {
      victims->push_back(key);
      in_heap_[row] = false;
      drop_last();
    } else if (uses.counts.empty()) {
      break;  // all others were used later; this one is put back below
    }
  }
  while (size < heap_.size()) {
    std::push_heap(heap_.begin(), heap_.begin() + ++size, kSmallestFirst);
  }
}

void EvictionOrder::Add(const RowUses& uses, int64_t row) {
  const Victim key = uses.KeyOf(row);
  if (built_ && !in_heap_[row] && key <= bound_) Push(key);
}

bool EvictionOrder::Fits(const RowUses& uses) const {
  if (!built_) return true;
  for (int64_t i = 0; i < kSamples; ++i) {
    const uint64_t random = Mix64(static_cast<uint64_t>(work_) + (static_cast<uint64_t>(i) << 32));
    const auto row = static_cast<int64_t>(random % static_cast<uint64_t>(uses.last_used.size()));
    if (row == 0 || uses.last_used[row] == 0 || in_heap_[row]) continue;
    if (uses.KeyOf(row) <= bound_) return false;
  }
  // A key of the heap is the current one of its row, or an earlier one.
  const size_t most = std::min<size_t>(heap_.size(), kSamples);
  return std::all_of(heap_.begin(), heap_.begin() + most,
                     [&](const Victim& key) { return key <= uses.KeyOf(std::get<2>(key)); });
}

std::unique_ptr<EvictionOrder> TakeEvictionOrder(const StateStamp& stamp, const RowUses& uses) {
  std::unique_ptr<EvictionOrder> found;
  {
    Orders& orders = ProcessOrders();
    std::lock_guard<std::mutex> lock(orders.mu);
    const auto at = std::find_if(orders.kept.begin(), orders.kept.end(), [&](const Kept& each) {
      return each.stamp.last_used == stamp.last_used;
    });
    if (at == orders.kept.end()) return nullptr;
    if (at->stamp == stamp) found = std::move(at->order);
    orders.kept.erase(at);
  }
  return found != nullptr && found->Fits(uses) ? std::move(found) : nullptr;
}

void KeepEvictionOrder(const StateStamp& stamp, std::unique_ptr<EvictionOrder> order) {
  Orders& orders = ProcessOrders();
  std::lock_guard<std::mutex> lock(orders.mu);
  if (orders.kept.size() == kMaxOrders) orders.kept.erase(orders.kept.begin());
  orders.kept.push_back({stamp, std::move(order)});
}

}  // namespace twml
