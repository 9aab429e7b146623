// rdmalloc.hpp in a program that is compiled without RTTI and exceptions: which resources are
// equal. Seen to fail: each was equal to itself alone, so a container moved between two of one heap
// copied element by element.
#include <cstdio>
#include <rdmalloc/rdmalloc.hpp>
#include <utility>
#include <vector>

#if defined(__cpp_rtti) || defined(__cpp_exceptions)
#error "compile it with -fno-rtti -fno-exceptions"
#endif

namespace {

// Another class with the same first member.
class Other : public std::pmr::memory_resource {
 public:
  explicit Other(rdmalloc_heap* heap) : heap_(heap) {}

 private:
  void* do_allocate(std::size_t, std::size_t) override { return heap_; }
  void do_deallocate(void*, std::size_t, std::size_t) override {}
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
  rdmalloc_heap* heap_;
};

int wrong = 0;
void check(bool is_right, const char* what) {
  if (is_right) return;
  std::printf("wrong: %s\n", what);
  wrong = 1;
}

}  // namespace

int main() {
  rdmalloc::heap heap = std::move(*rdmalloc::heap::create());
  rdmalloc::heap elsewhere = std::move(*rdmalloc::heap::create());
  rdmalloc::heap_resource resource(heap), same(heap), another(elsewhere);
  Other other(heap.get());
  check(resource.is_equal(resource), "a resource is not equal to itself");
  check(resource.is_equal(same) && same.is_equal(resource),
        "two resources of one heap are not equal");
  check(!resource.is_equal(another), "resources of two heaps are equal");
  check(!resource.is_equal(other) && !resource.is_equal(*std::pmr::new_delete_resource()),
        "it is equal to a stranger");
  std::pmr::vector<int> from({1, 2, 3}, &resource);
  const int* data = from.data();
  std::pmr::vector<int> to(std::move(from), &same);
  check(to.data() == data, "a vector that moved to an equal resource was copied");
  return wrong;
}
