// A treap over records: one algorithm, and for registrations two orders (by range, with the
// furthest end of each subtree, which makes it an interval tree; by time of the latest put, which
// makes it the LRU). Links lie in the records, so no operation allocates; those by range may be
// followed without the domain's lock by a reader that bounds its steps and trusts nothing that it
// finds (find_foreign.h). Priorities are a hash of the record's address: expected depth 2 ln n, 28
// for a million. Under the domain's lock.
//
// Treaps: Seidel and Aragon, "Randomized search trees", 1996. Furthest ends: Cormen et al., chapter
// "Augmenting data structures".
#pragma once

#include "regcache/core/registration.h"

namespace rdmalloc::regcache {

inline std::uint64_t priority_of(const void* record) {
  // Two rounds of multiply and fold (the finaliser of Appleby's MurmurHash3): records are made at
  // equal distances, usually in the order of their ranges, and that order must not show.
  std::uint64_t bits = reinterpret_cast<std::uintptr_t>(record) >> 5;
  bits = (bits ^ (bits >> 33)) * 0xff51afd7ed558ccdu;
  bits = (bits ^ (bits >> 33)) * 0xc4ceb9fe1a85ec53u;
  return bits ^ (bits >> 33);
}

struct RangeOrder {
  using Record = Registration;
  using Link = Shared<Registration*>;
  static RangeLinks& links(Registration* reg) { return reg->rest().by_range; }
  static bool is_before(const Registration* a, const Registration* b) {
    return a->head.base != b->head.base ? a->head.base < b->head.base : a < b;
  }
  static void update(Registration* reg) {
    std::uintptr_t furthest = reg->end();
    for (const Registration* child : {static_cast<Registration*>(reg->rest().by_range.left),
                                      static_cast<Registration*>(reg->rest().by_range.right)})
      if (child != nullptr && child->rest().furthest_end > furthest)
        furthest = child->rest().furthest_end;
    reg->rest().furthest_end = furthest;
  }
};

struct StampOrder {
  using Record = Registration;
  using Link = Registration*;
  static StampLinks& links(Registration* reg) { return reg->rest().by_stamp; }
  static bool is_before(const Registration* a, const Registration* b) {
    return a->rest().listed_stamp != b->rest().listed_stamp
               ? a->rest().listed_stamp < b->rest().listed_stamp
               : a < b;
  }
  static void update(Registration*) {}
};

template <class Order>
class Tree {
  using Link = typename Order::Link;
  using Record = typename Order::Record;

 public:
  bool is_empty() const { return root_ == nullptr; }
  void insert(Record* record) { root_ = inserted(root_, record); }
  // `record` must be in the tree, with the key it was inserted by.
  void erase(Record* record) { root_ = erased(root_, record); }
  Record* first() const {
    Record* record = root_;
    while (record != nullptr && Order::links(record).left != nullptr)
      record = Order::links(record).left;
    return record;
  }
  Record* root() const { return root_; }
  // Hands the whole tree over, for closing.
  void clear() { root_ = nullptr; }

 private:
  static Record* inserted(Record* top, Record* record) {
    if (top == nullptr || priority_of(record) > priority_of(top)) {
      split(top, record, &Order::links(record).left, &Order::links(record).right);
      Order::update(record);
      return record;
    }
    auto& links = Order::links(top);
    Link& side = Order::is_before(record, top) ? links.left : links.right;
    side = inserted(side, record);
    Order::update(top);
    return top;
  }
  // Parts the tree at `top` into what lies before `record` and what lies after it.
  static void split(Record* top, const Record* record, Link* before, Link* after) {
    if (top == nullptr) {
      *before = nullptr;
      *after = nullptr;
      return;
    }
    auto& links = Order::links(top);
    if (Order::is_before(top, record)) {
      *before = top;
      split(links.right, record, &links.right, after);
    } else {
      *after = top;
      split(links.left, record, before, &links.left);
    }
    Order::update(top);
  }
  static Record* erased(Record* top, Record* record) {
    auto& links = Order::links(top);
    if (top == record) return merged(links.left, links.right);
    Link& side = Order::is_before(record, top) ? links.left : links.right;
    side = erased(side, record);
    Order::update(top);
    return top;
  }
  // Everything in `low` lies before everything in `high`.
  static Record* merged(Record* low, Record* high) {
    if (low == nullptr) return high;
    if (high == nullptr) return low;
    if (priority_of(low) > priority_of(high)) {
      Order::links(low).right = merged(Order::links(low).right, high);
      Order::update(low);
      return low;
    }
    Order::links(high).left = merged(low, Order::links(high).left);
    Order::update(high);
    return high;
  }

  Link root_{};
};

using RangeTree = Tree<RangeOrder>;
using StampTree = Tree<StampOrder>;

#if RDMALLOC_CHECKED
// Registrations that this thread has looked at in look-ups: what a call costs.
inline constinit thread_local std::uint64_t tree_looks = 0;
#endif

// Calls fn(registration) for each that touches [low, high), by rising base, until it returns false.
// fn may change anything but the tree. Returns false when fn did.
template <class Fn>
bool visit_overlapping(Registration* top, std::uintptr_t low, std::uintptr_t high, Fn& fn) {
#if RDMALLOC_CHECKED
  tree_looks += top != nullptr;
#endif
  if (top == nullptr || top->rest().furthest_end <= low) return true;
  if (!visit_overlapping(top->rest().by_range.left, low, high, fn)) return false;
  if (top->base() >= high) return true;
  if (top->end() > low && !fn(top)) return false;
  return visit_overlapping(top->rest().by_range.right, low, high, fn);
}
template <class Fn>
bool visit_all(Registration* top, Fn& fn) {
  return top == nullptr || (visit_all(top->rest().by_range.left, fn) && fn(top) &&
                            visit_all(top->rest().by_range.right, fn));
}

}  // namespace rdmalloc::regcache
